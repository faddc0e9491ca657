"""A kubeconfig is read as kubectl reads it; what is not supported is said, with what to do instead."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from node_agent.errors import KubeAccessError
from node_agent.kube.kubeconfig import read_kubeconfig


class Config:
    """A kubeconfig in the making: ``cluster``, ``user`` and ``context`` are its current context's sections."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cluster: dict[str, Any] = {"server": "https://10.0.0.1:6443"}
        self.user: dict[str, Any] = {}
        self.context: dict[str, Any] = {"cluster": "c", "user": "u"}
        self.current = "x"

    def write(self) -> Path:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "preferences": {},
            "clusters": [
                {"name": "other", "cluster": {"server": "https://other"}},
                {"name": "c", "cluster": self.cluster},
            ],
            "users": [{"name": "u", "user": self.user}],
            "contexts": [{"name": "x", "context": self.context}],
            "current-context": self.current,
        }
        self.path.write_text(yaml.safe_dump(content))
        return self.path


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(tmp_path / "config")


def base64_of(text: bytes) -> str:
    return base64.b64encode(text).decode()


def test_the_current_context_says_which_server_and_who_we_are(config: Config) -> None:
    config.user, config.context["namespace"] = {"token": "secret"}, "gpu"
    access = read_kubeconfig(config.write())
    assert (access.server, access.token, access.namespace) == ("https://10.0.0.1:6443", "secret", "gpu")
    assert access.source == f"context x of {config.path}"
    assert (access.authority, access.certificate, access.key, access.verify) == (None, None, None, True)


def test_the_default_namespace_is_default(config: Config) -> None:
    assert read_kubeconfig(config.write()).namespace == "default"


def test_files_are_found_beside_the_kubeconfig_or_where_they_say(config: Config) -> None:
    config.cluster |= {"certificate-authority": "ca.crt", "tls-server-name": "kubernetes"}
    config.user |= {"client-certificate": "/pki/client.crt", "client-key": "keys/client.key", "tokenFile": "token"}
    access, folder = read_kubeconfig(config.write()), config.path.parent
    assert (access.authority, access.token) == (folder / "ca.crt", folder / "token")
    assert (access.certificate, access.key) == (Path("/pki/client.crt"), folder / "keys/client.key")
    assert access.server_name == "kubernetes"


def test_inline_data_comes_before_files(config: Config) -> None:
    config.cluster |= {"certificate-authority": "ca.crt", "certificate-authority-data": base64_of(b"authority")}
    config.user |= {"client-certificate-data": base64_of(b"certificate"), "client-key-data": base64_of(b"key")}
    access = read_kubeconfig(config.write())
    assert (access.authority, access.certificate, access.key) == (b"authority", b"certificate", b"key")


def test_a_tokens_file_comes_before_a_token(config: Config) -> None:
    config.user |= {"token": "old", "tokenFile": "/run/token"}
    assert read_kubeconfig(config.write()).token == Path("/run/token")


def test_trusting_anybody_must_be_asked_for(config: Config) -> None:
    config.cluster["insecure-skip-tls-verify"] = True
    assert not read_kubeconfig(config.write()).verify


@pytest.mark.parametrize(
    ("section", "setting", "said"),
    [
        ("user", {"exec": {"command": "aws"}}, "`exec` runs a program to log in, which is not supported: use a token"),
        ("user", {"auth-provider": {"name": "gcp"}}, "`auth-provider` is not supported: use a token"),
        ("user", {"username": "a", "password": "b"}, "are taken by no API server any more"),
        ("user", {"as": "somebody"}, "`as` is not supported"),
        ("cluster", {"proxy-url": "http://proxy"}, "`proxy-url` is not supported"),
        (
            "cluster",
            {"insecure-skip-tls-verify": True, "certificate-authority": "ca.crt"},
            "beside a certificate authority would make it useless",
        ),
    ],
)
def test_what_is_not_supported_is_said_with_what_to_do(
    config: Config, section: str, setting: dict[str, Any], said: str
) -> None:
    getattr(config, section).update(setting)
    with pytest.raises(KubeAccessError, match=said) as refused:
        read_kubeconfig(config.write())
    assert str(config.path) in str(refused.value)


def test_all_that_is_not_supported_is_said_at_once(config: Config) -> None:
    config.user |= {"exec": {}, "as": "somebody"}
    with pytest.raises(KubeAccessError, match=r"`exec`.*; `as`"):
        read_kubeconfig(config.write())


def test_a_context_that_is_not_there_is_named_with_those_that_are(config: Config) -> None:
    config.current = "y"
    with pytest.raises(KubeAccessError, match="current-context 'y' is not there; there is x"):
        read_kubeconfig(config.write())


@pytest.mark.parametrize(("what", "there"), [("cluster", "other, c"), ("user", "u")])
def test_a_context_that_names_what_is_not_there_is_refused(config: Config, what: str, there: str) -> None:
    config.context[what] = "none"
    with pytest.raises(KubeAccessError, match=f"{what} 'none' is not there; there is {there}"):
        read_kubeconfig(config.write())


def test_an_empty_kubeconfig_has_no_context(config: Config) -> None:
    config.path.write_text("apiVersion: v1\nkind: Config\nclusters: null\ncontexts: null\nusers: null\n")
    with pytest.raises(KubeAccessError, match="current-context '' is not there; there is none"):
        read_kubeconfig(config.path)


def test_a_server_that_is_no_url_is_refused(config: Config) -> None:
    config.cluster["server"] = "10.0.0.1"
    with pytest.raises(KubeAccessError, match=f"context x of {config.path}: server '10.0.0.1' is no URL"):
        read_kubeconfig(config.write())


def test_a_certificate_without_its_key_is_refused(config: Config) -> None:
    config.user["client-certificate"] = "client.crt"
    with pytest.raises(KubeAccessError, match="belong together"):
        read_kubeconfig(config.write())


def test_data_that_is_no_base64_is_named(config: Config) -> None:
    config.cluster["certificate-authority-data"] = "-----BEGIN"
    with pytest.raises(KubeAccessError, match="certificate-authority-data is no base64"):
        read_kubeconfig(config.write())


def test_a_value_of_the_wrong_kind_is_named_with_its_path(config: Config) -> None:
    config.user["token"] = 12345
    with pytest.raises(
        KubeAccessError, match=r"is no kubeconfig: Expected `str`, got `int` - at `\$\.users\[0\]\.user\.token`"
    ):
        read_kubeconfig(config.write())


@pytest.mark.parametrize("content", ["", "- a\n- b\n", "just words"])
def test_what_is_no_kubeconfig_is_refused(config: Config, content: str) -> None:
    config.path.write_text(content)
    with pytest.raises(KubeAccessError, match=f"{config.path} is no kubeconfig"):
        read_kubeconfig(config.path)


def test_what_is_no_yaml_is_refused(config: Config) -> None:
    config.path.write_text("a: [b")
    with pytest.raises(KubeAccessError, match="is no YAML"):
        read_kubeconfig(config.path)


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeAccessError, match=f"kubeconfig {tmp_path / 'none'} cannot be read: No such file"):
        read_kubeconfig(tmp_path / "none")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["clusters", "users", "contexts", "current-context"]), json_values))
def test_no_document_does_worse_than_being_refused(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    path = tmp_path_factory.mktemp("kubeconfig") / "config"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(KubeAccessError):
        read_kubeconfig(path)
