"""Reads a kubeconfig: what its current context says of the API server and of us."""

import base64
import binascii
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from node_agent.errors import KubeAccessError
from node_agent.kube.access import Access, Pem


# Only what is used, or refused: whatever else a kubeconfig has is for others.
class _Cluster(Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _User(Struct, rename="kebab"):
    token: str = ""
    token_file: str = field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    username: str = ""
    impersonated: str = field(default="", name="as")
    exec: Any = None
    auth_provider: Any = None


class _Context(Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(Struct):
    name: str
    cluster: _Cluster


class _NamedUser(Struct):
    name: str
    user: _User


class _NamedContext(Struct):
    name: str
    context: _Context


class _File(Struct, rename="kebab"):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


def read_kubeconfig(path: Path) -> Access:
    """The access that the current context of the file at ``path`` describes.

    Raises:
        KubeAccessError: the file cannot be read or understood, or asks for something that is not supported.
    """
    file = _parsed(path)
    contexts = {one.name: one.context for one in file.contexts or ()}
    context = _chosen(path, "current-context", file.current_context, contexts)
    cluster = _chosen(path, "cluster", context.cluster, {one.name: one.cluster for one in file.clusters or ()})
    user = _chosen(path, "user", context.user, {one.name: one.user for one in file.users or ()})
    if problems := [*_unsupported(cluster, user)]:
        raise KubeAccessError(f"{path}, context {file.current_context}: {'; '.join(problems)}")
    return Access(
        server=cluster.server,
        source=f"context {file.current_context} of {path}",
        namespace=context.namespace or "default",
        authority=_pem(path, cluster, "certificate_authority"),
        server_name=cluster.tls_server_name,
        verify=not cluster.insecure_skip_tls_verify,
        token=path.parent / user.token_file if user.token_file else user.token,
        certificate=_pem(path, user, "client_certificate"),
        key=_pem(path, user, "client_key"),
    )


def _parsed(path: Path) -> _File:
    import yaml  # noqa: PLC0415  # in a pod nobody reads one

    try:
        return msgspec.convert(yaml.safe_load(path.read_bytes()), _File)
    except OSError as error:
        raise KubeAccessError(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise KubeAccessError(f"kubeconfig {path} is no YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise KubeAccessError(f"{path} is no kubeconfig: {error}") from error


def _chosen(path: Path, what: str, name: str, there: dict[str, Any]) -> Any:
    if name not in there:
        have = ", ".join(there) or "none"
        raise KubeAccessError(f"kubeconfig {path}: {what} {name!r} is not there; there is {have}")
    return there[name]


def _unsupported(cluster: _Cluster, user: _User) -> Iterable[str]:
    """What the context asks for that is not done here, each with what to do instead."""
    if user.exec is not None:
        yield "`exec` runs a program to log in, which is not supported: use a token (kubectl create token)"
    if user.auth_provider is not None:
        yield "`auth-provider` is not supported: use a token (kubectl create token)"
    if user.username:
        yield "`username` and `password` are taken by no API server any more: use a token (kubectl create token)"
    if user.impersonated:
        yield "`as` is not supported: use that user's own token"
    if cluster.proxy_url:
        yield "`proxy-url` is not supported: the API server must be reached directly"
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        yield "`insecure-skip-tls-verify` beside a certificate authority would make it useless: keep one of them"


def _pem(path: Path, section: Struct, name: str) -> Pem | None:
    """The data of a setting, or its file, which a relative path has beside the kubeconfig."""
    if data := getattr(section, f"{name}_data"):
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            key = f"{name}_data".replace("_", "-")
            raise KubeAccessError(f"kubeconfig {path}: {key} is no base64: {error}") from error
    file = getattr(section, name)
    return path.parent / file if file else None
