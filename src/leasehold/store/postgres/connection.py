"""A connection that runs one statement at a time and stays registered with the event loop.

psycopg's cursor is half of what a small call costs a client: it parses the statement again, and
joins and leaves the event loop for each wait. This module uses the parts of psycopg that do the
work (libpq, and the adapters of values) without the cursor. Results are binary, which halves the
cost of ids and times on both sides. A statement is prepared when it is run for the second time.
See docs/decisions/0012.

Cursors and all other features of psycopg work on such a connection too, between its own calls.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import psycopg
from psycopg.adapt import Loader, PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.types.array import ListBinaryDumper

from leasehold.domain.intent import JsonDocument
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import LiteralString

    from psycopg.abc import Buffer
    from psycopg.pq.abc import PGconn, PGresult
    from psycopg.rows import RowMaker

# For the server to process a cancel request and to answer.
_CANCEL_SECONDS = 5.0
_READS_AT_ONCE = 64  # buffers of libpq, about ten thousand bytes each
_STALE_PLAN = "0A000"
STATEMENTS_MAX = 100  # that a connection remembers; the store has fewer

_log = get_logger(__name__)

Row = TypeVar("Row")


class HasResult(Protocol):
    """Something with a result of the server: a statement of ours, or a cursor of psycopg."""

    @property
    def pgresult(self) -> PGresult | None:
        """The result, with the names of its columns."""
        ...


RowFactory: TypeAlias = "Callable[[HasResult], RowMaker[Row]]"


class _Statement:
    """What a connection remembers of a statement: how to write its arguments, how to read its rows,
    and its prepared name for each combination of argument types.
    """

    def __init__(self, text: LiteralString, connection: Connection) -> None:
        parts = text.split("%s")
        self.query = "".join(
            [f"{part}${number}" for number, part in enumerate(parts[:-1], 1)] + parts[-1:]
        ).encode()
        self.names: dict[tuple[int, ...] | None, bytes | None] = {}
        self._formats = [PyFormat.AUTO] * (len(parts) - 1)
        self._values = Transformer(connection)
        self._row: RowFactory[Any] | None = None
        self._make: RowMaker[Any] = tuple

    @property
    def types(self) -> tuple[int, ...] | None:
        return self._values.types

    @property
    def formats(self) -> list[Format] | None:
        return self._values.formats

    def write(self, arguments: Sequence[object]) -> Sequence[Buffer | None]:
        return self._values.dump_sequence(arguments, self._formats)

    def read(self, result: PGresult, row: RowFactory[Row]) -> list[Row]:
        self._values.set_pgresult(result)
        if self._row is not row:
            self._make, self._row = row(self._values), row
        try:
            return self._values.load_rows(0, result.ntuples, self._make)
        finally:
            self._values.set_pgresult(None)  # otherwise a large result stays in memory

    def forget_columns(self) -> None:
        """Read the columns of the next result again."""
        self._row = None


class Connection(psycopg.AsyncConnection[Any]):
    """A connection of the pool. One call uses it at a time."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self.cached_until = 0.0
        self.query_count = 0
        self._statements: dict[str, _Statement] = {}
        self._prepared_count = 0
        self._loop: asyncio.AbstractEventLoop | None = None  # where it is registered
        self._fileno = -1
        self._waiting: asyncio.Future[None] | None = None

    async def fetch(
        self, text: LiteralString, arguments: Sequence[object], row: RowFactory[Row]
    ) -> list[Row]:
        """Run a statement with `%s` for its arguments, and return its rows."""
        self.query_count += 1
        statement = self._statements.get(text)
        if statement is None:
            statement = _Statement(text, self)
            if len(self._statements) < STATEMENTS_MAX:
                self._statements[text] = statement
        written = statement.write(arguments)
        try:
            name = await self._prepared_name(statement)
            if name is None:
                self.pgconn.send_query_params(
                    statement.query, written, statement.types, statement.formats, Format.BINARY
                )
            else:
                self.pgconn.send_query_prepared(name, written, statement.formats, Format.BINARY)
            result = await self._result()
        except asyncio.CancelledError:
            await self._abandon()
            raise
        except psycopg.OperationalError:
            self._leave_loop()  # libpq may have closed the socket, and its number may be reused
            raise
        except psycopg.Error as error:
            if error.sqlstate == _STALE_PLAN:
                self._statements.pop(text, None)
            raise
        return statement.read(result, row)

    def is_open(self) -> bool:
        """Whether the connection is open, as far as is known here: the server may have closed it.

        An idle connection has something to read if it was closed; else it is a notice.
        """
        if self.closed:
            return False
        arrived = select.poll()
        arrived.register(self.pgconn.socket, select.POLLIN)
        if not arrived.poll(0):
            return True
        self._leave_loop()  # libpq closes the socket at its end, and its number may be reused
        with suppress(psycopg.OperationalError):
            for _ in range(_READS_AT_ONCE):
                self.pgconn.consume_input()
                if not arrived.poll(0):
                    break
        return not self.closed

    async def wait(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 (psycopg's own)
        """Let psycopg wait in its own way."""
        self._leave_loop()
        return await super().wait(*arguments, **options)

    async def close(self) -> None:
        """Leave the event loop and close: the number of the socket may be reused."""
        self._leave_loop()
        await super().close()

    async def _prepared_name(self, statement: _Statement) -> bytes | None:
        """Return the prepared name of a statement; None the first time."""
        types = statement.types
        if types not in statement.names:
            statement.names[types] = None
            return None
        name = statement.names[types]
        if name is None:
            self._prepared_count += 1
            name = b"leasehold_%d" % self._prepared_count
            self.pgconn.send_prepare(name, statement.query, types)
            await self._result()
            statement.names[types] = name
            statement.forget_columns()
        return name

    async def _result(self) -> PGresult:
        """Send what is queued and return the result, or raise as a cursor would."""
        pgconn, waits = self.pgconn, 0
        while pgconn.flush():  # longer than the network takes at once
            await self._ready(again=waits > 0, is_writing=True)
            waits += 1
            pgconn.consume_input()
        last: PGresult | None = None
        while True:
            while pgconn.is_busy():
                await self._ready(again=waits > 0)
                waits += 1
                self._read()
            result = pgconn.get_result()
            if result is None:
                break
            last = result
        if last is None:
            raise psycopg.OperationalError("the server returned no result")
        if last.status == ExecStatus.FATAL_ERROR:
            raise error_from_result(last, encoding=self.info.encoding)
        return last

    def _read(self) -> None:
        """Read what has arrived, several buffers of libpq at once.

        libpq reads one buffer at a time, and a large result would wait for the event loop once for
        each of them.
        """
        arrived = select.poll()
        arrived.register(self._fileno, select.POLLIN)
        for _ in range(_READS_AT_ONCE):
            self.pgconn.consume_input()
            if not self.pgconn.is_busy() or not arrived.poll(0):
                return

    async def _ready(self, *, again: bool, is_writing: bool = False) -> None:
        """Wait until the socket is readable, or writable."""
        if again:
            # After an error on a socket, uvloop silently stops watching it: register again.
            self._leave_loop()
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
            self._fileno = self.pgconn.socket
            loop.add_reader(self._fileno, self._wake)
        waiting = self._waiting = loop.create_future()
        if is_writing:
            loop.add_writer(self._fileno, self._wake)
        try:
            await waiting
        finally:
            if is_writing:
                loop.remove_writer(self._fileno)

    def _wake(self) -> None:
        waiting = self._waiting
        if waiting is None or waiting.done():
            self._leave_loop()  # unrequested data, which the next call reads
        else:
            waiting.set_result(None)

    def _leave_loop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._fileno)
            self._loop = None

    async def _abandon(self) -> None:
        """Cancel the statement on the server, so that it does not take effect later.

        A connection on which this fails is not idle, so the pool does not lend it again.
        """
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            with suppress(psycopg.Error, TimeoutError):
                await self.cancel_safe(timeout=_CANCEL_SECONDS)
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await self._result()
        self._leave_loop()


def shut_down(connection: psycopg.AsyncConnection[Any]) -> None:
    """Shut down the socket of a connection, so that whoever waits for it gets an error now."""
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as duplicate,
    ):
        duplicate.shutdown(socket.SHUT_RDWR)


async def configure(connection: Connection) -> None:
    """Choose how values are sent and read, and log warnings."""
    connection.adapters.register_loader("jsonb", _RawJson)
    connection.adapters.register_loader("jsonb", _RawBinaryJson)
    # Binary, because parsing an id from text costs the server as much as finding its row.
    connection.adapters.register_dumper(list, ListBinaryDumper)
    connection.add_notice_handler(_log_warning)


class _RawJson(Loader):
    """Leaves JSON unparsed, because most of it is only passed on."""

    def load(self, data: Buffer) -> JsonDocument:
        return JsonDocument(bytes(data))


class _RawBinaryJson(Loader):
    """The same for the binary format: a version byte, then the text."""

    format = Format.BINARY

    def load(self, data: Buffer) -> JsonDocument:
        return JsonDocument(bytes(data[1:]))


def _log_warning(diagnostic: psycopg.errors.Diagnostic) -> None:
    """Log warnings, such as those of repair about rows that it cannot repair; skip notices."""
    if diagnostic.severity_nonlocalized == "WARNING":
        _log.warning("database_warned", message=diagnostic.message_primary)
