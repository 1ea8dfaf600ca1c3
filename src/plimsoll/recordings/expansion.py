"""Checks how far compressed data would expand, before anything is decompressed.

A few hundred bytes can expand to gigabytes. Each message of Arrow and each page of Parquet declares
its decompressed size and cannot exceed it. So this module reads these sizes, and refuses sizes
larger than those that plimsoll writes. Formats: https://arrow.apache.org/docs/format and
https://parquet.apache.org/docs/file-format.
"""

from __future__ import annotations

import struct
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from plimsoll.recordings.checks import DamageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_PAGE = 64 << 20  # bytes; Arrow writes pages of one MiB
_PARQUET_END = struct.Struct("<I4s")  # the length of the footer, and the magic "PAR1"
_LEAST_PARQUET = 12
_LONGEST_HEADER = 1 << 12  # bytes of a page's header; Arrow's headers have less than 200
_START = struct.Struct("<Ii")  # a message begins with a mark and a flatbuffer's length
_MESSAGE = 0xFFFFFFFF
_RECORD_BATCH = 3  # the type of a message with columns
_WIDEST = 8  # bytes of the widest value
_PADDING = 64
_UNCOMPRESSED = -1

# These are types of fields in Thrift's compact protocol.
_STOP = 0
_BOOLEANS = (1, 2)
_BYTE = 3
_INTEGERS = (4, 5, 6)
_DOUBLE = 7
_BINARY = 8
_SEQUENCES = (9, 10)
_STRUCTURE = 12
_MOST_NESTED = 8


def read_messages(file: IO[bytes], size: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the messages of an Arrow stream, up to the first incomplete one.

    Args:
        file: The file, open for reading, at its beginning.
        size: The size of the file. A message that claims to end after it counts as incomplete.

    Yields:
        The flatbuffer of each message, and the bytes after it.
    """
    while len(start := file.read(_START.size)) == _START.size:
        mark, length = _START.unpack(start)
        if mark != _MESSAGE or not 0 < length <= size - file.tell():
            return
        metadata = file.read(length)
        try:
            body_length = _Table(metadata, _unpack("<I", metadata, 0)).get(3, "<q")
        except (DamageError, struct.error):
            return
        if not 0 <= body_length <= size - file.tell():
            return
        yield metadata, memoryview(file.read(body_length))


def check_message(metadata: bytes, body: memoryview, most_rows: int) -> None:
    """Checks that a message of an Arrow stream is a batch of columns within the size limits.

    Args:
        metadata: The message's flatbuffer.
        body: The bytes after it.
        most_rows: The most rows of a batch.

    Raises:
        DamageError: If the message is anything else.
    """
    try:
        message = _Table(metadata, _unpack("<I", metadata, 0))
        if message.get(1, "<B") != _RECORD_BATCH:
            raise DamageError("there is something else than events")
        batch = message.table(2)
        rows = batch.get(0, "<q")
        if not 0 <= rows <= most_rows:
            raise DamageError("a batch has an impossible number of events")
        for offset, length in batch.structs(2, "<qq"):
            if offset < 0 or length < 0 or offset + length > len(body):
                raise DamageError("a batch is cut")
            size = length
            if batch.has(3) and length:
                size = _unpack("<q", body, offset)
                size = length if size == _UNCOMPRESSED else size
            if not 0 <= size <= rows * _WIDEST + _PADDING:
                raise DamageError("a batch has a column of impossible size")
    except struct.error:
        raise DamageError("a batch is described wrongly") from None


def check_pages(file: IO[bytes], first: int, size: int) -> int:
    """Checks that the pages of a column in a Parquet file are within the size limits.

    Args:
        file: The file, open for reading.
        first: The offset of the first page in the file.
        size: The bytes of all pages, with their headers.

    Returns:
        The decompressed size of all pages, in bytes.

    Raises:
        DamageError: If a page is too large, or the pages do not fill their range.
    """
    total, at, end = 0, first, first + size
    while at < end:
        file.seek(at)
        header = _Thrift(file.read(min(end - at, _LONGEST_HEADER)))
        try:
            fields = header.integers()
        except IndexError:
            raise DamageError("a page is described wrongly") from None
        expanded, packed = fields.get(2, -1), fields.get(3, -1)
        if packed < 0 or not 0 <= expanded <= _MOST_PAGE:
            raise DamageError("a page has an impossible size")
        at += header.at + packed
        total += expanded
    if at != end:
        raise DamageError("pages do not fill their place")
    return total


class ColumnPages(NamedTuple):
    """The range of a column's pages in a Parquet file.

    Attributes:
        first: The offset of the first page in the file.
        size: The bytes of all pages, with their headers.
    """

    first: int
    size: int


class RowGroup(NamedTuple):
    """A group of rows of a Parquet file.

    Attributes:
        rows: The number of rows.
        columns: The pages of each column.
    """

    rows: int
    columns: list[ColumnPages]


def read_row_groups(file: IO[bytes], size: int) -> list[RowGroup]:
    """Returns the groups of rows of a Parquet file, from its footer.

    pyarrow could read the groups too, but an inconsistent footer makes it end the process.

    Args:
        file: The file, open for reading.
        size: The size of the file, in bytes.

    Raises:
        DamageError: If the footer is missing or invalid.
    """
    if size < _LEAST_PARQUET:
        raise DamageError("the end is missing")
    file.seek(size - _PARQUET_END.size)
    length, mark = _PARQUET_END.unpack(file.read(_PARQUET_END.size))
    if mark != b"PAR1" or length > size - _LEAST_PARQUET:
        raise DamageError("the end is missing")
    file.seek(size - _PARQUET_END.size - length)
    footer = _Thrift(file.read(length))
    groups: list[RowGroup] = []
    try:
        for field, kind in footer.fields():
            if field == 4 and kind in _SEQUENCES:
                groups += [_row_group(footer) for _ in footer.structures()]
            else:
                footer.skip_field(kind)
    except (IndexError, KeyError):
        raise DamageError("columns are described wrongly") from None
    return groups


def _row_group(footer: _Thrift) -> RowGroup:
    rows = -1
    columns: list[ColumnPages] = []
    for field, kind in footer.fields():
        if field == 1 and kind in _SEQUENCES:
            columns += [_column_pages(footer) for _ in footer.structures()]
        elif field == 3 and kind in _INTEGERS:
            rows = footer.integer()
        else:
            footer.skip_field(kind)
    if rows < 0:
        raise DamageError("the number of its events is wrong")
    return RowGroup(rows, columns)


def _column_pages(footer: _Thrift) -> ColumnPages:
    facts: dict[int, int] = {}
    for field, kind in footer.fields():
        if field == 3 and kind == _STRUCTURE:
            facts = footer.integers()
        else:
            footer.skip_field(kind)
    # field 11 is the offset of the dictionary's page, field 9 that of the first data page
    first, size = min(facts[9], facts.get(11, facts[9])), facts[7]
    if first < 0 or size < 0:
        raise DamageError("columns are described wrongly")
    return ColumnPages(first, size)


class _Table:
    """A table of a flatbuffer. Its fields have numbers, and each may be missing."""

    def __init__(self, buffer: bytes, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - _unpack("<i", buffer, at)
        self._size = _unpack("<H", buffer, self._fields)

    def _place(self, field: int) -> int:
        entry = 4 + 2 * field
        offset = _unpack("<H", self._buffer, self._fields + entry) if entry < self._size else 0
        return self._at + offset if offset else 0

    def has(self, field: int) -> bool:
        return self._place(field) != 0

    def get(self, field: int, kind: str) -> int:
        place = self._place(field)
        return _unpack(kind, self._buffer, place) if place else 0

    def _followed(self, field: int) -> int:
        place = self._place(field)
        if not place:
            raise DamageError("a batch is described wrongly")
        return place + _unpack("<I", self._buffer, place)

    def table(self, field: int) -> _Table:
        return _Table(self._buffer, self._followed(field))

    def structs(self, field: int, kind: str) -> list[tuple[Any, ...]]:
        at = self._followed(field)
        count = _unpack("<I", self._buffer, at)
        width = struct.calcsize(kind)
        if count * width > len(self._buffer):
            raise DamageError("a batch is described wrongly")
        return list(struct.iter_unpack(kind, self._buffer[at + 4 : at + 4 + count * width]))


def _unpack(kind: str, buffer: bytes | memoryview, at: int) -> int:
    if at < 0:
        raise DamageError("a batch is described wrongly")
    (value,) = struct.unpack_from(kind, buffer, at)
    return int(value)


class _Thrift:
    """Reads a structure in Thrift's compact protocol. Raises `IndexError` at the buffer's end."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yields the number and type of each field; the caller must read or skip the value."""
        field = 0
        while (head := self._byte()) & 0x0F != _STOP:
            field = field + (head >> 4) if head >> 4 else self.integer()
            yield field, head & 0x0F

    def structures(self) -> Iterator[None]:
        """Yields once for each structure in a list; the caller must then read its fields."""
        head = self._byte()
        if head & 0x0F != _STRUCTURE:
            raise DamageError("columns are described wrongly")
        for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
            yield

    def integers(self, depth: int = 0) -> dict[int, int]:
        """Reads the structure. Returns its integer fields by number."""
        if depth > _MOST_NESTED:
            raise DamageError("a page is described wrongly")
        found: dict[int, int] = {}
        for field, kind in self.fields():
            if kind in _INTEGERS:
                found[field] = self.integer()
            else:
                self.skip_field(kind, depth)
        return found

    def skip_field(self, kind: int, depth: int = 0) -> None:
        """Skips the value of a field."""
        if kind not in _BOOLEANS:  # the type of a boolean field contains its value
            self._skip(kind, depth)

    def _skip(self, kind: int, depth: int) -> None:
        if kind in _INTEGERS:
            self._varint()
        elif kind == _BYTE or kind in _BOOLEANS:
            self._byte()
        elif kind == _DOUBLE:
            self.at += 8
        elif kind == _BINARY:
            length = self._varint()
            self.at += length
        elif kind in _SEQUENCES:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            if depth > _MOST_NESTED:
                raise DamageError("a page is described wrongly")
            for _ in range(count):
                self._skip(head & 0x0F, depth + 1)
        elif kind == _STRUCTURE:
            self.integers(depth + 1)
        else:  # page headers have no maps
            raise DamageError("a page is described wrongly")

    def _byte(self) -> int:
        byte = self._content[self.at]
        self.at += 1
        return byte

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise DamageError("a page is described wrongly")

    def integer(self) -> int:
        """Returns the value of an integer field."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
