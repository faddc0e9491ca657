"""Finds the API server: in a kubeconfig that was named, or else by the pod that we run in."""

import os
from collections.abc import Mapping
from pathlib import Path

from node_agent.errors import KubeAccessError
from node_agent.kube.access import Access
from node_agent.kube.kubeconfig import read_kubeconfig

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def find_access(
    kubeconfig: Path | None = None,
    environment: Mapping[str, str] | None = None,
    account: Path = SERVICE_ACCOUNT,
) -> Access:
    """From ``kubeconfig``, else from the file that KUBECONFIG names, else as a pod with the files of ``account``.

    Raises:
        KubeAccessError: there is none of these, or it cannot be used.
    """
    environment = os.environ if environment is None else environment
    if kubeconfig is not None:
        return read_kubeconfig(kubeconfig)
    if named := environment.get("KUBECONFIG"):
        if ":" in named:
            raise KubeAccessError(f"KUBECONFIG names several files, {named}: name one, since they are not merged")
        return read_kubeconfig(Path(named))
    return in_cluster(environment, account)


def in_cluster(environment: Mapping[str, str], account: Path) -> Access:
    """The API server as its cluster's pods know it, and the pod's service account.

    Raises:
        KubeAccessError: this is no pod, or one without a service account's token.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubeAccessError(
            "no API server is known: KUBERNETES_SERVICE_HOST is not set, so this is no pod; "
            "name a kubeconfig with --kubeconfig or KUBECONFIG"
        )
    token, namespace = account / "token", account / "namespace"
    if not token.is_file():
        raise KubeAccessError(f"{token} is missing: the pod needs a service account and its token mounted")
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        source=f"the service account in {account}",
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
        authority=account / "ca.crt",
        token=token,
    )
