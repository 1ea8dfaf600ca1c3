"""Fetches an address whose server is untrusted.

The time and the size of the answer are limited, and a redirect is refused.
"""

from __future__ import annotations

import io
import queue
import socket
import ssl
import threading
import time
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.printable import printable
from plimsoll.base.units import format_size

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from _typeshed import WriteableBuffer

_OK = 200
_REDIRECTS = range(300, 400)
_PORTS = {"http": 80, "https": 443}
_LONGEST_REASON = 200


def get(address: SplitResult, *, seconds: float, most_bytes: int) -> bytes:
    """Returns the body of the answer to a GET request.

    Args:
        address: An http or https address with a host.
        seconds: The time for name resolution, connection, headers and body together.
        most_bytes: The most bytes that the body may have.

    Raises:
        InputError: If there is no valid answer in time.
    """
    ends = time.monotonic() + seconds
    path = address.path + (f"?{address.query}" if address.query else "")
    host = address.netloc.rpartition("@")[2]
    headers = f"Host: {host}\r\nAccept-Encoding: identity\r\nConnection: close"
    try:
        with _connect(address, ends) as connected:
            connected.sendall(f"GET {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode("ascii"))
            answer = HTTPResponse(connected, method="GET")  # type: ignore[arg-type]
            answer.begin()
            place = answer.getheader("Location")
            if place is not None and answer.status in _REDIRECTS:
                raise InputError(_shown(f"redirects are not followed; it sends to {place}"))
            if answer.status != _OK:
                raise InputError(_shown(f"it answers {answer.status} {answer.reason}"))
            body = answer.read(most_bytes + 1)
            if answer.length and len(body) <= most_bytes:
                raise IncompleteRead(body)
    except TimeoutError:
        raise InputError(f"no answer within {seconds:g} s") from None
    except OSError as error:
        raise InputError(_shown(error.strerror or str(error))) from None
    except IncompleteRead:
        raise InputError("its answer breaks off") from None
    except HTTPException as error:
        raise InputError(_shown(f"its answer is not HTTP: {error!r}")) from None
    if len(body) > most_bytes:
        raise InputError(f"its answer is too long, over {format_size(most_bytes)}")
    return body


class _Connected(io.RawIOBase):
    """A connection with one deadline for all its reads and writes.

    A socket's own timeout cannot be that deadline, because the timeout restarts with each byte
    received.
    """

    def __init__(self, connected: socket.socket, ends: float) -> None:
        self._socket = connected
        self._ends = ends

    def sendall(self, content: bytes) -> None:
        """Sends all bytes before the deadline, or raises."""
        self._socket.settimeout(_left(self._ends))
        self._socket.sendall(content)

    def makefile(self, *_: object) -> io.BufferedReader:
        """Returns a reader of the answer, for `http.client`."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Returns True: `http.client` reads the answer from this object."""
        return True

    def readinto(self, into: WriteableBuffer, /) -> int:
        """Reads the next bytes; waits for them until the deadline."""
        self._socket.settimeout(_left(self._ends))
        return self._socket.recv_into(into)

    def close(self) -> None:
        """Closes the connection."""
        super().close()
        self._socket.close()


def _connect(address: SplitResult, ends: float) -> _Connected:
    """Connects to the first of the host's addresses that accepts a connection.

    Raises:
        OSError: If no address accepts; the error is that of the last address.
    """
    host = address.hostname or ""
    failure = OSError("it has no address")
    places = _addresses(host, address.port or _PORTS[address.scheme], ends)
    for number, (family, kind, protocol, _, place) in enumerate(places):
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(_left(ends) / (len(places) - number))
            connected.connect(place)
            if address.scheme == "https":
                connected.settimeout(_left(ends))
                connected = ssl.create_default_context().wrap_socket(
                    connected, server_hostname=host
                )
        except OSError as error:
            connected.close()
            failure = error
        else:
            return _Connected(connected, ends)
    raise failure


def _addresses(host: str, port: int, ends: float) -> list[Any]:
    """Resolves the host in a thread, because the resolver takes no deadline.

    Raises:
        OSError: If the host has no addresses, or they are not found in time.
    """
    found: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.put(error)
        except ValueError:  # the name cannot be encoded
            found.put(OSError("no host can have this name"))

    threading.Thread(target=ask, name="plimsoll-resolve", daemon=True).start()
    try:
        answer = found.get(timeout=_left(ends))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _left(ends: float) -> float:
    """Returns the seconds until the deadline.

    Raises:
        TimeoutError: If the deadline has passed.
    """
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _shown(reason: str) -> str:
    return printable(reason)[:_LONGEST_REASON]
