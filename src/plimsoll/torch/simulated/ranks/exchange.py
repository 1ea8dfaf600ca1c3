"""Exchanges what ranks contribute to collectives, through the process group's store.

A rank posts its contribution and continues. It waits for the other ranks only where real ranks wait
too: in `wait()`, or in a call that is not asynchronous. This file does not interpret the
contributions. csrc/collectives/given.h makes them from a tensor's values if these are known, and
otherwise from a description of the tensor.

The C++ library sends its requests as bytes (csrc/collectives/exchange.cpp). A meeting is one
collective, or one message from a rank to another. A rank's place is its rank in the group.
"""

from __future__ import annotations

import json
import secrets
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import OutOfMemoryError
from plimsoll.torch.simulated.ranks import posts
from plimsoll.torch.simulated.ranks.mismatches import Header, check_agreement
from plimsoll.torch.simulated.ranks.pretended import letter_of, stand_in
from plimsoll.torch.simulated.ranks.waiting import Board, DeadlockError, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.torch.simulated.ranks.communicators import Communicators

_NOBODY = -1
_ANYBODY = -2
_WELL, _FAILED, _OUT_OF_MEMORY = b"+", b"-", b"!"


@dataclass
class Group:
    """A process group, as this rank sees it.

    Attributes:
        store: PyTorch's store through which the group's ranks exchange bytes. It puts the
            group's own prefix before each key.
        rank: This process's place in the group.
        members: The rank of each member in the job, by the member's place.
        present: The places of the ranks that run. No process runs for the remaining ranks (see
            pretended.py).
        name: The group's name in messages.
    """

    store: Any
    rank: int
    members: list[int]
    present: frozenset[int]
    name: str
    posted: int = 0
    read: set[int] = field(default_factory=set)
    """The numbers of the meetings after `all_read` whose posts this rank has already read."""
    all_read: int = 0
    """The number of the first meeting whose posts this rank has not yet read."""
    read_by: dict[int, int] = field(default_factory=dict)
    """Maps a rank's place to the last known `all_read` of that rank."""
    kept: int = 0
    """The number of the first meeting for which the store still has this rank's post."""
    pieces: dict[int, int] = field(default_factory=dict)
    """Maps a meeting to how many pieces this rank's post has after the first (see posts.py)."""
    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    received: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def is_alone(self) -> bool:
        """Returns whether no other rank of the group runs."""
        return len(self.present) == 1


@dataclass(frozen=True)
class _Meeting:
    """A meeting that has begun, and whose result the C++ library has not yet collected."""

    group: Group
    header: Header
    mine: bytes
    keys: dict[int, str]
    """The store's keys for the posts that this rank waits for, by place; may be empty."""
    sender: int | None
    tag: int
    number: int = _NOBODY
    """If the meeting is a collective, its number in the group; otherwise `_NOBODY`."""


class Exchange:
    """Carries out this process's collectives and messages when the C++ library requests them.

    Attributes:
        groups: The process groups, by number.
        board: The board on which ranks write what they wait for; None while only one rank runs.
    """

    def __init__(
        self,
        where: Callable[[], str],
        communicators: Communicators,
        note_letter: Callable[[list[int]], None],
    ) -> None:
        self.groups: dict[int, Group] = {}
        self.board: Board | None = None
        self._where = where
        self._communicators = communicators
        self._note_letter = note_letter
        self._meetings: dict[int, _Meeting] = {}
        self._last = 0
        self._lock = threading.Lock()

    def give_up(self, why: str) -> None:
        """Makes other ranks stop waiting for this rank. They raise an error that contains `why`."""
        if self.board is not None:
            self.board.give_up(f"rank {self.board.rank} {why}")

    def add(self, group: Group) -> int:
        """Adds a group and returns its number."""
        with self._lock:
            number = len(self.groups)
            self.groups[number] = group
        return number

    def __call__(self, question: bytes) -> bytes:
        """Answers a request of the C++ library.

        The first byte of the answer is `_WELL`, `_FAILED` or `_OUT_OF_MEMORY`.
        """
        asked = _Reader(question[1:])
        try:
            answer = {"p": self._post, "c": self._collect, "n": self._need, "d": self._drop}[
                chr(question[0])
            ](asked)
        except DeadlockError as error:
            return _FAILED + str(error).encode()
        except OutOfMemoryError as error:
            return _OUT_OF_MEMORY + str(error).encode()
        except (RuntimeError, OSError) as error:  # raised by the store
            what = f"a rank of the job has ended, and the job's store with it ({error})"
            return _FAILED + what.encode()
        return _WELL + answer

    def _post(self, asked: _Reader) -> bytes:
        group = self.groups[asked.number()]
        to, sender, tag = asked.small(), asked.small(), asked.small()
        what, agreed = asked.text(), asked.text()
        given = asked.rest()
        header = Header(
            group.members[group.rank],
            what,
            agreed,
            self._where(),
            secrets.randbits(60) + 1,
            group.all_read,
        )
        number_of_all = _NOBODY
        if to != _NOBODY:
            keys = self._send(group, header, to, tag, given)
        elif sender != _NOBODY:
            keys = self._receive(group, sender, tag)
        else:
            number_of_all = group.posted
            keys = self._post_to_all(group, header, given)
        with self._lock:
            self._last += 1
            number = self._last
            source = sender if sender != _NOBODY else None
            self._meetings[number] = _Meeting(
                group, header, given, keys, source, tag, number_of_all
            )
        return struct.pack("=Q", number)

    def _post_to_all(self, group: Group, header: Header, given: bytes) -> dict[int, str]:
        number = group.posted
        group.posted += 1
        if group.is_alone:
            return {}
        key = f"{number}/{group.rank}"
        group.pieces[number] = posts.post(group.store, key, _message(header, given))
        return {place: f"{number}/{place}" for place in sorted(group.present - {group.rank})}

    def _send(
        self, group: Group, header: Header, to: int, tag: int, given: bytes
    ) -> dict[int, str]:
        count = group.sent.get((to, tag), 0)
        group.sent[to, tag] = count + 1
        self._note_letter(group.members)
        if not group.is_alone:
            key = _letter(group.rank, to, tag, count)
            posts.post(group.store, key, _message(header, given))
        return {}

    def _receive(self, group: Group, sender: int, tag: int) -> dict[int, str]:
        self._note_letter(group.members)
        if sender == _ANYBODY:
            return {}
        count = group.received.get((sender, tag), 0)
        group.received[sender, tag] = count + 1
        found = letter_of(sender, group.rank, group.present, len(group.members))
        return {} if found is None else {found[0]: _letter(*found, tag, count)}

    def _collect(self, asked: _Reader) -> bytes:
        with self._lock:
            meeting = self._meetings.pop(asked.number())
        group = meeting.group
        if meeting.sender is not None:
            return self._collect_letter(meeting)
        if meeting.header.what == "send":
            return struct.pack("=Qq", meeting.header.series, _NOBODY)
        told = self._read(meeting)
        headers = {place: header for place, (header, _, _) in told.items()}
        headers[group.rank] = meeting.header
        check_agreement(group.name, headers)
        if told:
            self._forget(group, meeting.number, headers)
        series = headers[min(headers)].series
        answer = [struct.pack("=Qq", series, _NOBODY)]
        size = len(group.members)
        for each in range(size):
            place = stand_in(each, group.rank, group.present, size)
            given = meeting.mine if place == group.rank else told[place][1]
            answer += [struct.pack("=Q", len(given)), given]
        return b"".join(answer)

    def _forget(self, group: Group, number: int, headers: dict[int, Header]) -> None:
        """Notes that a meeting was read, and removes this rank's posts that all ranks have read.

        A slow rank may not yet have read the posts of the last few meetings.
        """
        with self._lock:
            group.read.add(number)
            while group.all_read in group.read:
                group.read.remove(group.all_read)
                group.all_read += 1
            for place, header in headers.items():
                group.read_by[place] = max(group.read_by.get(place, 0), header.read)
            group.read_by[group.rank] = group.all_read
            first, group.kept = group.kept, max(group.kept, min(group.read_by.values()))
        for each in range(first, group.kept):
            posts.remove(group.store, f"{each}/{group.rank}", group.pieces.pop(each, 0))

    def _collect_letter(self, meeting: _Meeting) -> bytes:
        group, sender = meeting.group, meeting.sender
        if sender == _ANYBODY:
            found = self._find_letter(meeting)
            if found is None:
                return struct.pack("=Qq", meeting.header.series, int(group.rank == 0))
            sender, key = found
            meeting = _Meeting(group, meeting.header, b"", {sender: key}, sender, meeting.tag)
        # Without a key there is no message: no process runs for the sender, and no running rank's
        # message can replace the sender's.
        if not meeting.keys:
            return struct.pack("=Qq", meeting.header.series, sender)
        ((place, (header, given, pieces)),) = self._read(meeting).items()
        check_agreement(group.name, {place: header, group.rank: meeting.header})
        # If some ranks of the group do not run, the message stays in the store. Then a rank may
        # read it again, in place of a message from a rank that does not run.
        if len(group.present) == len(group.members):
            posts.remove(group.store, meeting.keys[place], pieces)
        return struct.pack("=QqQ", header.series, place, len(given)) + given

    def _find_letter(self, meeting: _Meeting) -> tuple[int, str] | None:
        """Waits for a message from any rank. Returns the message's sender and key.

        Returns None if no other rank runs.
        """
        group = meeting.group
        others = sorted(group.present - {group.rank})
        if not others:
            return None
        with self._waiting(meeting) as wait:
            while True:
                for place in others:
                    count = group.received.get((place, meeting.tag), 0)
                    key = _letter(place, group.rank, meeting.tag, count)
                    if group.store.check([key]):
                        group.received[place, meeting.tag] = count + 1
                        return place, key
                wait.nap([group.members[place] for place in others])

    def _read(self, meeting: _Meeting) -> dict[int, tuple[Header, bytes, int]]:
        """Waits for the posts that a meeting needs. Returns them by the place of the posting rank.

        Each post has a header, the posted bytes, and the number of pieces after the first.
        """
        if not meeting.keys:
            return {}
        store, keys = meeting.group.store, meeting.keys
        members = meeting.group.members
        missing = dict(keys)
        with self._waiting(meeting) as wait:
            while missing := {p: key for p, key in missing.items() if not store.check([key])}:
                wait.nap([members[place] for place in missing])
        texts = posts.read(store, list(keys.values()))
        return {
            place: (*_parsed(text), pieces)
            for place, (text, pieces) in zip(keys, texts, strict=True)
        }

    def _waiting(self, meeting: _Meeting) -> Wait:
        header = meeting.header
        return Wait(self.board, header.rank, header.what, header.line, meeting.group.name)

    def _need(self, asked: _Reader) -> bytes:
        number = asked.number()
        device, key, pattern = asked.small(), asked.text(), asked.text()
        group = self.groups[number]
        self._communicators.need(number, group.members, group.rank, device, key, pattern)
        return b""

    def _drop(self, asked: _Reader) -> bytes:
        self._communicators.drop(asked.number())
        return b""


class _Reader:
    """Reads the values that csrc/collectives/exchange.cpp writes into a request."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0

    def _take(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._text, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def number(self) -> int:
        return self._take("=Q")

    def small(self) -> int:
        return self._take("=i")

    def text(self) -> str:
        size = self.number()
        self._at += size
        return self._text[self._at - size : self._at].decode()

    def rest(self) -> bytes:
        return self._text[self._at :]


def _letter(sender: int, to: int, tag: int, count: int) -> str:
    return f"{sender}>{to}/{tag}/{count}"


def _message(header: Header, given: bytes) -> bytes:
    return json.dumps(header.__dict__).encode() + b"\n" + given


def _parsed(message: bytes) -> tuple[Header, bytes]:
    head, _, given = message.partition(b"\n")
    return Header(**json.loads(head)), given
