"""The server behind a page: who gets an answer, and what it is."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.trace import Action
from plimsoll.view.columns import unpack_column
from plimsoll.view.page import prepare
from plimsoll.view.server import PageServer
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


def test_other_paths_are_not_found(server: PageServer) -> None:
    assert ask(server, "../../etc/passwd")[0] == 404
    assert ask(server, "favicon.ico")[0] == 404
