"""Arrays of ids and of numbers on their way to the server.

A leader names what it takes with each batch, and reading an id from text costs the server as much
as finding its row. So they travel in binary, in the format of arrays of PostgreSQL.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from psycopg.adapt import Dumper
from psycopg.pq import Format

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from psycopg import AsyncConnection

_UUID_OID = 2950
_UUID_ARRAY_OID = 2951
_INTEGER_OID = 23
_INTEGER_ARRAY_OID = 1007
_DOUBLE_OID = 701
_DOUBLE_ARRAY_OID = 1022
# Dimensions, whether there are NULLs, the type; then the length of the dimension and its start.
_HEADER = struct.Struct("!iiIii")
_DOUBLE = struct.Struct("!id")
_SIZE = struct.pack("!i", 16)
_INTEGER_SIZE = struct.pack("!i", 4)


def _array(oid: int, entries: list[bytes]) -> bytes:
    """Write an array of one dimension; each entry begins with its length."""
    return _HEADER.pack(1, 0, oid, len(entries), 1) + b"".join(entries)


class Ids:
    """An array of ids as an argument."""

    __slots__ = ("ids",)

    def __init__(self, ids: Sequence[UUID]) -> None:
        self.ids = ids


class Integers:
    """An array of numbers of 32 bits as an argument."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers


class Doubles:
    """An array of numbers of 64 bits with a fraction as an argument."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[float]) -> None:
        self.numbers = numbers


class _TextIds(Dumper):
    """For a pooler, where arguments are part of the query string."""

    oid = _UUID_ARRAY_OID

    def dump(self, obj: Ids) -> bytes:
        return f"{{{','.join([one.hex for one in obj.ids])}}}".encode()


class _BinaryIds(Dumper):
    format = Format.BINARY
    oid = _UUID_ARRAY_OID

    def dump(self, obj: Ids) -> bytes:
        # As UUID.bytes does it, without a call in between.
        return _array(_UUID_OID, [_SIZE + one.int.to_bytes(16, "big") for one in obj.ids])


class _TextIntegers(Dumper):
    oid = _INTEGER_ARRAY_OID

    def dump(self, obj: Integers | Doubles) -> bytes:
        return f"{{{','.join(map(str, obj.numbers))}}}".encode()


class _BinaryIntegers(Dumper):
    format = Format.BINARY
    oid = _INTEGER_ARRAY_OID

    def dump(self, obj: Integers) -> bytes:
        # Few of them differ: most calls are a first try.
        written = {one: _INTEGER_SIZE + one.to_bytes(4, "big") for one in set(obj.numbers)}
        return _array(_INTEGER_OID, [written[one] for one in obj.numbers])


class _TextDoubles(_TextIntegers):
    oid = _DOUBLE_ARRAY_OID


class _BinaryDoubles(Dumper):
    format = Format.BINARY
    oid = _DOUBLE_ARRAY_OID

    def dump(self, obj: Doubles) -> bytes:
        packed = _DOUBLE.pack
        return _array(_DOUBLE_OID, [packed(8, one) for one in obj.numbers])


def register_ids(connection: AsyncConnection[Any]) -> None:
    """Let a connection take all of them; of two formats the one registered last is preferred."""
    connection.adapters.register_dumper(Ids, _TextIds)
    connection.adapters.register_dumper(Ids, _BinaryIds)
    connection.adapters.register_dumper(Integers, _TextIntegers)
    connection.adapters.register_dumper(Integers, _BinaryIntegers)
    connection.adapters.register_dumper(Doubles, _TextDoubles)
    connection.adapters.register_dumper(Doubles, _BinaryDoubles)
