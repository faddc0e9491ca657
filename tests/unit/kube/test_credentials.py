"""Tokens and certificates are read from their files, and again when these change; what cannot be used is said."""

import os
import shutil
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from node_agent.errors import KubeAccessError
from node_agent.kube.access import Access
from node_agent.kube.credentials import Credentials
from tests.fakes import certificates

ACCESS = Access(server="https://127.0.0.1", source="the test")


def subjects(context: ssl.SSLContext) -> set[str]:
    """The common names of the authorities that a context trusts."""
    return {dict(part[0] for part in one["subject"])["commonName"] for one in context.get_ca_certs()}  # type: ignore[misc]


def swap(source: Path, into: Path) -> None:
    """Put a file in another's place as the kubelet does it: by a rename."""
    copy = into.with_suffix(".new")
    shutil.copy(source, copy)
    os.replace(copy, into)


def test_without_a_token_there_is_none() -> None:
    assert Credentials(ACCESS).token() == ""


def test_a_token_is_what_it_is() -> None:
    assert Credentials(replace(ACCESS, token="t")).token() == "t"


def test_a_tokens_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    credentials = Credentials(replace(ACCESS, token=file))
    assert credentials.token() == "first"
    file.write_text("second\n")
    assert credentials.token() == "second"


def test_a_token_behind_a_link_that_is_swung_is_read_again(tmp_path: Path) -> None:
    """Projected volumes swing one link to a new folder with all files."""
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "token").write_text(version)
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "token").symlink_to("..data/token")
    credentials = Credentials(replace(ACCESS, token=tmp_path / "token"))
    assert credentials.token() == "v1"
    (tmp_path / "next").symlink_to("v2")
    os.replace(tmp_path / "next", tmp_path / "..data")
    assert credentials.token() == "v2"


def test_a_missing_token_is_named_and_used_when_it_comes(tmp_path: Path) -> None:
    credentials = Credentials(replace(ACCESS, token=tmp_path / "token"))
    with pytest.raises(KubeAccessError, match=r"token cannot be read: No such file or directory"):
        credentials.token()
    (tmp_path / "token").write_text("late")
    assert credentials.token() == "late"


def test_the_authority_alone_is_trusted() -> None:
    context = Credentials(replace(ACCESS, authority=certificates.AUTHORITY)).tls()
    assert subjects(context) == {"authority"}
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_an_inline_authority_is_as_good_as_a_file() -> None:
    assert subjects(Credentials(replace(ACCESS, authority=certificates.AUTHORITY.read_bytes())).tls()) == {"authority"}


def test_the_context_is_made_once_and_again_when_a_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    swap(certificates.AUTHORITY, file)
    credentials = Credentials(replace(ACCESS, authority=file))
    first = credentials.tls()
    assert credentials.tls() is first
    swap(certificates.STRANGER, file)
    assert subjects(credentials.tls()) == {"stranger"}


def test_two_authorities_in_one_file_are_both_trusted(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(certificates.AUTHORITY.read_bytes() + certificates.STRANGER.read_bytes())
    assert subjects(Credentials(replace(ACCESS, authority=tmp_path / "ca.crt")).tls()) == {"authority", "stranger"}


def test_anybody_is_trusted_where_that_is_asked_for() -> None:
    context = Credentials(replace(ACCESS, verify=False)).tls()
    assert context.verify_mode is ssl.CERT_NONE
    assert not context.check_hostname


@pytest.mark.parametrize("content", [b"", b"no certificate", b"\xff\xfe", "ü".encode()])
def test_an_authority_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ca.crt").write_bytes(content)
    with pytest.raises(KubeAccessError, match=r"ca\.crt of the test holds no certificates"):
        Credentials(replace(ACCESS, authority=tmp_path / "ca.crt")).tls()
    with pytest.raises(KubeAccessError, match="the inline data of the test holds no certificates"):
        Credentials(replace(ACCESS, authority=content)).tls()


def test_a_missing_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeAccessError, match=r"ca\.crt cannot be read: No such file"):
        Credentials(replace(ACCESS, authority=tmp_path / "ca.crt")).tls()


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeAccessError, match="cannot be read: Is a directory"):
        Credentials(replace(ACCESS, token=tmp_path)).token()


def test_a_key_of_another_certificate_is_refused() -> None:
    shown = replace(ACCESS, certificate=certificates.CLIENT, key=certificates.SERVER.with_suffix(".key"))
    with pytest.raises(
        KubeAccessError, match=r"client\.crt and .*server\.key of the test are no certificate with its key"
    ):
        Credentials(shown).tls()


def test_no_key_is_left_behind_and_none_is_written_to_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(os.listdir("/proc/self/fd"))
    shown = replace(ACCESS, certificate=certificates.CLIENT.read_bytes(), key=certificates.CLIENT_KEY.read_bytes())
    Credentials(shown).tls()
    assert set(os.listdir("/proc/self/fd")) == before
    assert not list(tmp_path.iterdir())
