"""The API server is found in the kubeconfig that was named, or else as pods find it."""

from pathlib import Path

import pytest

from node_agent.errors import KubeAccessError
from node_agent.kube.find import find_access, in_cluster

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
KUBECONFIG = """
clusters: [{name: c, cluster: {server: "https://SERVER:6443"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The folder with a service account's files, as in every pod."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("a token")
    (folder / "ca.crt").write_text("a certificate")
    (folder / "namespace").write_text("gpu-node-agent\n")
    return folder


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / f"{server}.kubeconfig"
    path.write_text(KUBECONFIG.replace("SERVER", server))
    return path


def test_a_pod_finds_its_clusters_server_and_its_own_account(account: Path) -> None:
    access = in_cluster(POD, account)
    assert access.server == "https://10.96.0.1:443"
    assert (access.token, access.authority) == (account / "token", account / "ca.crt")
    assert access.namespace == "gpu-node-agent"
    assert str(account) in access.source
    assert access.verify


def test_an_address_of_the_sixth_version_gets_its_brackets(account: Path) -> None:
    assert in_cluster(POD | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, account).server == "https://[fd00::1]:443"


def test_the_port_of_https_is_the_default(account: Path) -> None:
    assert in_cluster({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, account).server == "https://10.96.0.1:443"


def test_a_missing_namespace_is_the_default_one(account: Path) -> None:
    (account / "namespace").unlink()
    assert in_cluster(POD, account).namespace == "default"


def test_a_pod_without_a_token_is_told_what_it_needs(account: Path) -> None:
    (account / "token").unlink()
    with pytest.raises(
        KubeAccessError, match="token is missing: the pod needs a service account and its token mounted"
    ):
        in_cluster(POD, account)


def test_outside_of_a_pod_a_kubeconfig_is_asked_for(account: Path) -> None:
    with pytest.raises(KubeAccessError, match="name a kubeconfig with --kubeconfig or KUBECONFIG"):
        in_cluster({}, account)


def test_a_named_kubeconfig_comes_first_then_the_environments_then_the_pod(account: Path, tmp_path: Path) -> None:
    named, other = kubeconfig(tmp_path, "named"), kubeconfig(tmp_path, "other")
    environment = POD | {"KUBECONFIG": str(other)}
    assert find_access(named, environment, account).server == "https://named:6443"
    assert find_access(None, environment, account).server == "https://other:6443"
    assert find_access(None, POD, account).server == "https://10.96.0.1:443"


def test_the_process_environment_is_looked_at_where_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "here")))
    assert find_access().server == "https://here:6443"


def test_several_kubeconfigs_are_not_merged() -> None:
    with pytest.raises(KubeAccessError, match="KUBECONFIG names several files, /a:/b: name one"):
        find_access(None, {"KUBECONFIG": "/a:/b"})
