"""Whatever is or is not behind the socket, the client answers or raises OSError."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.kit.http_client import get, lines, post


@contextmanager
def answering(path: Path, answer: bytes | None) -> Iterator[None]:
    """A listener that takes one request and sends these bytes; with None it stays silent until the client goes."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            if answer is not None:
                connection.sendall(answer)
            else:
                connection.recv(1)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        server = threading.Thread(target=serve)
        server.start()
        yield
        server.join()
    path.unlink()


def test_the_answer_is_status_and_body(tmp_path: Path) -> None:
    with answering(tmp_path / "s", b"HTTP/1.1 503 Busy\r\ncontent-length: 5\r\n\r\nno go"):
        assert get(tmp_path / "s", "/readyz") == (503, b"no go")


def test_a_post_is_answered_as_a_get_is(tmp_path: Path) -> None:
    with answering(tmp_path / "s", b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope"):
        assert post(tmp_path / "s", "/clear") == (404, b"nope")


def test_the_lines_of_an_answer_that_goes_on_come_one_by_one(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n5\r\n\ntwo\n\r\n0\r\n\r\n"
    with answering(tmp_path / "s", answer), lines(tmp_path / "s", "/count") as (status, found):
        assert (status, list(found)) == (200, [b"one\n", b"two\n"])


def test_lines_that_stay_away_are_an_os_error(tmp_path: Path) -> None:
    with (
        answering(tmp_path / "s", None),
        pytest.raises(TimeoutError),
        lines(tmp_path / "s", "/count", timeout=0.05),
    ):
        pytest.fail("nothing was answered")


def test_nobody_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        get(tmp_path / "gone", "/healthz")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    with pytest.raises(ConnectionRefusedError):
        get(tmp_path / "dead", "/healthz")


def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    with answering(tmp_path / "s", None), pytest.raises(TimeoutError):
        get(tmp_path / "s", "/healthz", timeout=0.05)


@pytest.mark.parametrize(
    "answer", [b"", b"\x00\x01", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"]
)
def test_what_does_not_speak_http_is_an_os_error_that_names_the_socket(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "s", answer), pytest.raises(ConnectionError, match="/s does not speak HTTP"):
        get(tmp_path / "s", "/healthz")


@given(answer=st.one_of(st.binary(max_size=100), st.binary(max_size=60).map(lambda rest: b"HTTP/1.1 " + rest)))
def test_no_answer_raises_anything_but_os_error(tmp_path_factory: pytest.TempPathFactory, answer: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-answer"
    path.unlink(missing_ok=True)
    with answering(path, answer):
        try:
            status, _ = get(path, "/healthz", timeout=1)
        except OSError:
            return
        assert 100 <= status <= 999
