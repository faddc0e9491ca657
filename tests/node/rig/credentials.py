"""A node's certificates, tokens and kubeconfigs: a certificate authority of its own, and a token for each identity.

The API server knows the tokens from a file (``Credentials.tokens``); everyone verifies it against ``authority``.
"""

import csv
import secrets
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.node.rig.command import run

# The names and groups that Kubernetes' built-in roles are bound to.
IDENTITIES = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "kubelet": ("system:node:{hostname}", "system:nodes"),
}
OPENSSL_CONFIG = """
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """Where the files of a node's credentials are, below ``folder``, and how its API server is reached."""

    folder: Path
    server: str
    """Such as ``https://198.18.0.2:443``."""

    @property
    def authority(self) -> Path:
        return self.folder / "authority.crt"

    @property
    def certificate(self) -> Path:
        """What the API server and the kubelet serve with."""
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        """The certificate's key, with which service accounts' tokens are signed too."""
        return self.folder / "server.key"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    def kubeconfig(self, identity: str) -> Path:
        return self.folder / f"{identity}.kubeconfig"

    def write_kubeconfig(self, identity: str, token: str) -> Path:
        """Write a kubeconfig for a token, such as a service account's; returns its path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "rig", "cluster": {"server": self.server, "certificate-authority": str(self.authority)}}
            ],
            "users": [{"name": identity, "user": {"token": token}}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": identity}}],
            "current-context": "rig",
        }
        self.kubeconfig(identity).write_text(yaml.safe_dump(config))
        return self.kubeconfig(identity)


def issue(credentials: Credentials, *, hostname: str, names: list[str]) -> None:
    """Make all files; ``names`` is what the server is known by, such as ``IP:10.0.0.1`` or ``DNS:kubernetes``."""
    credentials.folder.mkdir()
    _certify(credentials, names)
    with credentials.tokens.open("w", newline="") as file:
        tokens = csv.writer(file)
        for identity, (user, group) in IDENTITIES.items():
            token = secrets.token_urlsafe()
            tokens.writerow([token, user.format(hostname=hostname), identity, group])
            credentials.write_kubeconfig(identity, token)


def _certify(credentials: Credentials, names: list[str]) -> None:
    config = credentials.folder / "openssl.cnf"
    config.write_text(OPENSSL_CONFIG.format(names=",".join(names)))
    request = ["openssl", "req", "-x509", "-days", "30", "-config", str(config), *NEW_KEY]
    authority = _files(credentials.authority, "-out", "-keyout")
    run([*request, "-subj", "/CN=rig-authority", "-extensions", "authority", *authority])
    signer = _files(credentials.authority, "-CA", "-CAkey")
    server = _files(credentials.certificate, "-out", "-keyout")
    run([*request, "-subj", "/CN=rig-server", "-extensions", "server", *signer, *server])


def _files(certificate: Path, certificate_option: str, key_option: str) -> list[str]:
    return [certificate_option, str(certificate), key_option, str(certificate.with_suffix(".key"))]
