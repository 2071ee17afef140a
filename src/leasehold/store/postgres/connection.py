"""A connection that answers one statement at a time, and stays registered with the event loop.

Of what a small call costs a client, half is psycopg's cursor: it looks at the statement anew, and
joins and leaves the event loop for each wait. Here are the parts of psycopg that do the work
(libpq, and the adapters of values) without what stands around them. Answers travel in binary, where
ids and times cost either side half of what their texts do. A statement is prepared when it comes
for the second time.

Cursors and everything else of psycopg work on such a connection too, between its own calls.
"""

from __future__ import annotations

import asyncio
import select
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import LiteralString

    from psycopg.abc import Buffer
    from psycopg.pq.abc import PGconn, PGresult
    from psycopg.rows import RowMaker

# For the server to hear that nobody waits for an answer any more, and then to give it.
_CANCEL_SECONDS = 5.0
_READS_AT_ONCE = 64  # buffers of libpq, each of some ten thousand bytes
_STALE_PLAN = "0A000"
STATEMENTS_MAX = 100  # that are kept; ours are fewer

Row = TypeVar("Row")


class Answered(Protocol):
    """Whatever has an answer of the server: our statements here, or a cursor of psycopg."""

    @property
    def pgresult(self) -> PGresult | None:
        """The answer, with the names of its columns."""
        ...


RowFactory: TypeAlias = "Callable[[Answered], RowMaker[Row]]"


class _Statement:
    """What a connection has learned of a statement: how to write its arguments, how to read its
    answer, and under which name the server has it for arguments of these types.
    """

    def __init__(self, text: LiteralString, connection: Connection) -> None:
        parts = text.split("%s")
        self.query = "".join(
            [f"{part}${place}" for place, part in enumerate(parts[:-1], 1)] + parts[-1:]
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

    def written(self, arguments: Sequence[object]) -> Sequence[Buffer | None]:
        return self._values.dump_sequence(arguments, self._formats)

    def rows(self, result: PGresult, row: RowFactory[Row]) -> list[Row]:
        self._values.set_pgresult(result)
        if self._row is not row:
            self._make, self._row = row(self._values), row
        try:
            return self._values.load_rows(0, result.ntuples, self._make)
        finally:
            self._values.set_pgresult(None)  # or a large answer stays in memory

    def forget_rows(self) -> None:
        """Look at the columns of the next answer anew."""
        self._row = None


class Connection(psycopg.AsyncConnection[Any]):
    """One of the pool's; whoever has it may ask one thing at a time."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self.kept_until = 0.0
        self.asked_count = 0
        self._statements: dict[str, _Statement] = {}
        self._prepared_count = 0
        self._loop: asyncio.AbstractEventLoop | None = None  # where it is registered
        self._fileno = -1
        self._waiting: asyncio.Future[None] | None = None

    async def ask(
        self, text: LiteralString, arguments: Sequence[object], row: RowFactory[Row]
    ) -> list[Row]:
        """Run a statement with `%s` for its arguments, and give its rows."""
        self.asked_count += 1
        statement = self._statements.get(text)
        if statement is None:
            statement = _Statement(text, self)
            if len(self._statements) < STATEMENTS_MAX:
                self._statements[text] = statement
        written = statement.written(arguments)
        try:
            name = await self._name_of(statement)
            if name is None:
                self.pgconn.send_query_params(
                    statement.query, written, statement.types, statement.formats, Format.BINARY
                )
            else:
                self.pgconn.send_query_prepared(name, written, statement.formats, Format.BINARY)
            result = await self._answer()
        except asyncio.CancelledError:
            await self._give_up()
            raise
        except psycopg.OperationalError:
            self._leave_loop()  # libpq may have closed the socket, and its number go to another
            raise
        except psycopg.Error as error:
            if error.sqlstate == _STALE_PLAN:
                self._statements.pop(text, None)
            raise
        return statement.rows(result, row)

    async def wait(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 (psycopg's own)
        """Let psycopg wait in its own way."""
        self._leave_loop()
        return await super().wait(*arguments, **options)

    async def close(self) -> None:
        """Close it, and leave the event loop first: the socket's number may go to another."""
        self._leave_loop()
        await super().close()

    async def _name_of(self, statement: _Statement) -> bytes | None:
        """Give the name under which the server has a statement; None the first time."""
        types = statement.types
        if types not in statement.names:
            statement.names[types] = None
            return None
        name = statement.names[types]
        if name is None:
            self._prepared_count += 1
            name = b"leasehold_%d" % self._prepared_count
            self.pgconn.send_prepare(name, statement.query, types)
            await self._answer()
            statement.names[types] = name
            statement.forget_rows()
        return name

    async def _answer(self) -> PGresult:
        """Have the last thing that was sent answered, or raise as a cursor would."""
        pgconn, waits = self.pgconn, 0
        while pgconn.flush():  # it is longer than the network takes at once
            await self._ready(again=waits > 0, is_writing=True)
            waits += 1
            pgconn.consume_input()
        answer: PGresult | None = None
        while True:
            while pgconn.is_busy():
                await self._ready(again=waits > 0)
                waits += 1
                self._read()
            result = pgconn.get_result()
            if result is None:
                break
            answer = result
        if answer is None or answer.status == ExecStatus.FATAL_ERROR:
            if answer is None:
                raise psycopg.OperationalError("the server gave no answer")
            raise error_from_result(answer, encoding=self.info.encoding)
        return answer

    def _read(self) -> None:
        """Take what has come. libpq reads a buffer at a time, and a large answer would wait for the
        event loop again for each: so some are read at once, as long as there is more.
        """
        come = select.poll()
        come.register(self._fileno, select.POLLIN)
        for _ in range(_READS_AT_ONCE):
            self.pgconn.consume_input()
            if not self.pgconn.is_busy() or not come.poll(0):
                return

    async def _ready(self, *, again: bool, is_writing: bool = False) -> None:
        """Wait until the network has something for us, or takes something from us."""
        if again:
            # After an error on a socket, uvloop looks at it no more, and does not say so.
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
            self._leave_loop()  # the server said something unasked: whoever asks next will see
        else:
            waiting.set_result(None)

    def _leave_loop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._fileno)
            self._loop = None

    async def _give_up(self) -> None:
        """Have the server stop, so that what nobody waits for does not act later on; a connection
        that is not done with it by then is not lent again.
        """
        if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            with suppress(psycopg.Error, TimeoutError):
                await self.cancel_safe(timeout=_CANCEL_SECONDS)
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await self._answer()
        self._leave_loop()
