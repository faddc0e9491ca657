"""An access can be used, or is refused with what is wrong and where; it keeps its secrets."""

from pathlib import Path

import pytest

from node_agent.errors import KubeAccessError
from node_agent.kube.access import Access


@pytest.mark.parametrize(
    "server", ["https://10.96.0.1:443", "http://127.0.0.1:8001", "https://[fd00::1]:6443", "https://a.b/c"]
)
def test_a_url_is_a_server(server: str) -> None:
    assert Access(server=server, source="the test").server == server


@pytest.mark.parametrize(
    "server", ["", "10.96.0.1:443", "ftp://a", "https://", "https://a:port", "https://a:99999", "https://a:0"]
)
def test_anything_else_is_none_and_the_message_says_where_it_came_from(server: str) -> None:
    with pytest.raises(KubeAccessError, match=r"the test: server .* is no URL"):
        Access(server=server, source="the test")


def test_a_certificate_and_its_key_belong_together() -> None:
    with pytest.raises(KubeAccessError, match="belong together"):
        Access(server="https://a", source="the test", certificate=Path("client.crt"))
    with pytest.raises(KubeAccessError, match="belong together"):
        Access(server="https://a", source="the test", key=b"secret")


def test_tokens_and_keys_are_not_shown() -> None:
    access = Access(server="https://a", source="s", token="hush", certificate=b"public", key=b"psst")
    assert "hush" not in repr(access)
    assert "psst" not in repr(access)
