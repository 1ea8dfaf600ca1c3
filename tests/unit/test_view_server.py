"""Tests the server of `plimsoll view --serve`: which requests it refuses, and its answers."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plimsoll.page.run import prepare
from plimsoll.page.server import PageServer
from plimsoll.recordings.events import Action
from tests.recordings import EXAMPLES
from tests.unit.packed_columns import unpack_column
from tests.unit.view_histories import MiB, recording_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = [(int(Action.ALLOC), i * MiB, 512 + i, 0, 0, 0) for i in range(100)]


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with PageServer([prepare(recording_of(ROWS))], most_bytes=0) as running:
        yield running


def ask(
    server: PageServer, path: str, *, token: str | None = None, host: str | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=10)
    prefix = address.path if token is None else f"/{token}/"
    try:
        connection.putrequest("GET", prefix + path, skip_host=True)
        connection.putheader("Host", host or address.netloc)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_the_page_is_answered_and_kept_by_nobody(server: PageServer) -> None:
    status, content, headers = ask(server, "")
    assert status == 200
    assert content.startswith(b"<!doctype html>")
    assert b"connect-src 'self'" in content
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


def test_it_listens_on_this_machine_only(server: PageServer) -> None:
    assert server._server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("token", ["", "wrong", "é"])
def test_without_the_token_nothing_is_answered(server: PageServer, token: str) -> None:
    quoted = "%C3%A9" if token == "é" else token
    status, content, _ = ask(server, "", token=quoted)
    assert status == 403
    assert content == b"the token is missing or wrong\n"
    assert ask(server, "blocks?device=0&begin=0&end=1", token=quoted)[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1:1"])
def test_under_another_name_nothing_is_answered(server: PageServer, host: str) -> None:
    assert ask(server, "", host=host)[0] == 421


def test_a_window_has_its_blocks(server: PageServer) -> None:
    status, content, _ = ask(server, "blocks?device=0&begin=9&end=10")
    assert status == 200
    sizes = unpack_column(json.loads(content)["size"])
    assert np.array_equal(sizes, 512 + np.arange(10))


@given(st.text(alphabet="device=0123456789&bgn-%+", max_size=40))
def test_a_query_that_makes_no_sense_is_refused(server: PageServer, query: str) -> None:
    status, _, _ = ask(server, f"blocks?{query}")
    assert status == 400


@pytest.mark.parametrize(
    "query", ["device=1&begin=0&end=1", "device=-1&begin=0&end=1", "device=0&begin=2&end=1",
              "device=0&begin=0&end=999999999999"]
)  # fmt: skip
def test_a_window_that_is_not_there_is_refused(server: PageServer, query: str) -> None:
    assert ask(server, f"blocks?{query}")[0] == 400


@pytest.mark.parametrize(
    "query", ["device=0&begin=-2&end=1", "device=0&begin=0&end=101",
              f"device=0&begin={10**30}&end={10**30 + 1}", f"device={10**30}&begin=0&end=1",
              f"device=0&begin=0&end={'9' * 5000}"]
)  # fmt: skip
def test_a_window_outside_of_the_history_is_refused(server: PageServer, query: str) -> None:
    assert ask(server, f"blocks?{query}")[0] == 400


def send(server: PageServer, request: bytes) -> bytes:
    """Sends bytes. Returns the server's whole answer."""
    port = urlsplit(server.url).port or 0
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    return answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\r\n", 400),
        (b" \t \r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/one\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\n\r\n", 505),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 421),
        (b"GET / HTTP/0.9\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\na: " + b"b" * (1 << 20) + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n", 414),
        (b"POST / HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n" + b"a" * (1 << 20), 421),
        (b"PUT / HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n" + b"a" * (1 << 20), 501),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", 400),  # a TLS client hello
    ],
)
def test_a_malformed_request_is_answered(
    server: PageServer, request_bytes: bytes, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert send(server, request_bytes).startswith(b"HTTP/1.0 %d " % status)
    assert ask(server, "")[0] == 200
    assert capfd.readouterr().err == ""


@given(st.binary(min_size=1, max_size=200))
@example(b"GET \xff\xfe\x00 HTTP/1.1\r\nHost: \xff\r\n\r\n")
@settings(deadline=None)
def test_whatever_comes_is_answered(server: PageServer, request_bytes: bytes) -> None:
    assert send(server, request_bytes + b"\r\n\r\n").startswith(b"HTTP/1.0 4")


def test_who_goes_before_the_answer_is_no_error(
    server: PageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    address = urlsplit(server.url)
    for _ in range(20):
        connection = socket.create_connection(("127.0.0.1", address.port or 0))
        request = f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n"
        connection.sendall(request.encode())
        reset = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        connection.close()
    assert ask(server, "")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_file_that_only_its_user_reads_leads_to_the_page(server: PageServer) -> None:
    with server.opening_file() as path:
        content = path.read_text()
        assert f'content="0; url={server.url}"' in content
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0
        assert urlsplit(server.url).path.strip("/") not in str(path)
    assert not path.parent.exists()


def test_other_paths_are_not_found(server: PageServer) -> None:
    assert ask(server, "../../etc/passwd")[0] == 404
    assert ask(server, "favicon.ico")[0] == 404


def post(
    server: PageServer, path: str, content: bytes, length: int | None = None
) -> tuple[int, bytes]:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=10)
    try:
        connection.putrequest("POST", address.path + path)
        if length is None or length >= 0:
            connection.putheader("Content-Length", str(len(content) if length is None else length))
        connection.endheaders(content)
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_WR)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_recording_that_is_sent_is_answered_with_its_page() -> None:
    with PageServer([prepare(recording_of(ROWS, devices=2))], most_bytes=0) as server:
        content = (EXAMPLES / "gpt2_adamw_oom.pickle.gz").read_bytes()
        for first in (2, 3):
            status, page = post(server, "recordings?name=run.pickle.gz", content)
            assert status == 200
            assert b'"first_device":%d,"served":true' % first in page
            assert b'"name":"run.pickle.gz"' in page
        status, blocks, _ = ask(server, "blocks?device=3&begin=0&end=10")
        assert status == 200
        assert json.loads(blocks)["size"]["count"] > 0
        assert ask(server, "blocks?device=4&begin=0&end=10")[0] == 400


@pytest.mark.parametrize(
    ("content", "length", "status", "said"),
    [
        (b"", None, 400, b"odd\\x1b.pickle: the file is empty\n"),
        (b"not a recording", None, 400, b"odd\\x1b.pickle: "),
        (b"cut", 5, 400, b"odd\\x1b.pickle: not all of it has come\n"),
        (b"", -1, 411, b"a recording comes with its length\n"),
    ],
)
def test_what_is_no_recording_is_refused_by_name(
    server: PageServer, content: bytes, length: int | None, status: int, said: bytes
) -> None:
    found, answer = post(server, "recordings?name=odd%1b.pickle", content, length)
    assert (found, answer[: len(said)]) == (status, said)
    assert b"/tmp" not in answer
    assert post(server, "blocks", b"")[0] == 404
