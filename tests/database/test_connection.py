"""One statement at a time on a connection that stays registered with the event loop."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest
import uvloop

from leasehold.store.postgres.connection import STATEMENTS_MAX, Connection
from leasehold.store.postgres.query import as_tuples, first_column
from tests.support.engine import until

pytestmark = pytest.mark.one_server

PID = "SELECT pg_backend_pid()"


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Run a test on each event loop, because they register sockets differently."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


async def connected(database):
    return await Connection.connect(database.url, autocommit=True)


async def fetch(connection, statement, *arguments):
    return await connection.fetch(statement, arguments, first_column)


async def count_prepared(connection):
    cursor = await connection.execute("SELECT statement FROM pg_prepared_statements")
    return sorted(statement for (statement,) in await cursor.fetchall())


def test_repeated_statement_is_prepared(database, run):
    async def scenario():
        async with await connected(database) as connection:
            seen = []
            for number in (1, 2, 3):
                assert await fetch(connection, "SELECT %s + %s", number, 1) == [number + 1]
                seen.append(await count_prepared(connection))
            return seen

    assert run(scenario()) == [[], ["SELECT $1 + $2"], ["SELECT $1 + $2"]]


def test_same_statement_with_other_argument_types_is_prepared_anew(database, run):
    """psycopg chooses the type of a number by its size."""
    given = [1, 2, 100_000, 3, 5_000_000_000, 100_001, None, 4, None, 6_000_000_000]

    async def scenario():
        async with await connected(database) as connection:
            return [await fetch(connection, "SELECT %s::bigint", one) for one in given]

    assert run(scenario()) == [[one] for one in given]


def test_cursor_can_be_used_between_calls(database, run):
    async def scenario():
        async with await connected(database) as connection:
            found = []
            for number in range(5):
                found += await fetch(connection, "SELECT %s + 0", number)
                cursor = await connection.execute("SELECT %s + 0", [number])
                found += await cursor.fetchone()
            return found

    assert run(scenario()) == [number for number in range(5) for _ in range(2)]


def test_error_does_not_change_the_state_of_the_connection(database, run):
    async def scenario():
        async with await connected(database) as connection:
            for _ in range(3):
                with pytest.raises(psycopg.errors.DivisionByZero):
                    await fetch(connection, "SELECT 1 / %s", 0)
                assert await fetch(connection, "SELECT 1 / %s", 1) == [1]

    run(scenario())


def test_arguments_and_results_larger_than_the_network_buffers_are_sent(database, run):
    """The server sends while it still reads, so a client that only writes or only reads hangs."""
    text = "x" * 30_000_000

    async def scenario():
        async with await connected(database) as connection:
            for _ in range(2):
                [found] = await fetch(connection, "SELECT %s::text", text)
                assert found == text

    run(asyncio.wait_for(scenario(), 60))


IS_IDLE = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'idle'"


def test_received_result_is_read_at_once_even_if_it_fills_many_buffers(database, run):
    """If it read one buffer per wakeup, each would wait for other tasks of the event loop."""
    rows = "SELECT repeat('x', 100) FROM generate_series(1, 1500)"

    async def scenario():
        connection = await Woken.connect(database.url, autocommit=True)
        for _ in range(2):
            assert len(await fetch(connection, rows)) == 1500
        connection.count = 0
        asking = asyncio.create_task(fetch(connection, rows))
        await asyncio.sleep(0)
        # The event loop has other things to do until the server has sent everything.
        while not database.execute(IS_IDLE, [connection.info.backend_pid]):
            time.sleep(0.01)  # noqa: ASYNC251 (as above)
        assert len(await asking) == 1500
        assert connection.count <= 3
        await connection.close()

    run(asyncio.wait_for(scenario(), 30))


def test_prepared_statement_fails_once_after_a_migration(database, run):
    database.execute("CREATE TABLE public.changed (a integer)")
    database.execute("INSERT INTO public.changed VALUES (1)")
    statement = "SELECT * FROM public.changed"

    async def scenario():
        async with await connected(database) as connection:
            for _ in range(2):
                assert await connection.fetch(statement, (), as_tuples) == [(1,)]
            database.execute("ALTER TABLE public.changed ADD b text DEFAULT 'two'")
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                await connection.fetch(statement, (), as_tuples)
            for _ in range(3):
                assert await connection.fetch(statement, (), as_tuples) == [(1, "two")]

    run(scenario())


def test_session_that_ends_while_idle_uses_no_cpu_and_fails_the_next_call(database, run):
    async def scenario():
        connection = await Woken.connect(database.url, autocommit=True)
        [pid] = await fetch(connection, PID)
        connection.count = 0
        database.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        await until(lambda: connection.count)
        await asyncio.sleep(0.05)
        assert connection.count == 1  # once, not repeatedly
        with pytest.raises(psycopg.OperationalError):
            await fetch(connection, "SELECT 1")
        await connection.close()

    run(asyncio.wait_for(scenario(), 20))


class Woken(Connection):
    """Counts the wakeups by the event loop."""

    count = 0

    def _wake(self):
        self.count += 1
        super()._wake()


def test_new_connection_may_reuse_the_file_descriptor_of_a_broken_one(database, run):
    async def scenario():
        numbers = []
        for _ in range(5):
            connection = await connected(database)
            numbers.append(connection.fileno())
            [pid] = await fetch(connection, PID)
            asking = asyncio.create_task(fetch(connection, "SELECT pg_sleep(60)"))
            await asyncio.sleep(0.02)
            database.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
            with pytest.raises(psycopg.OperationalError):
                await asking
        assert len(set(numbers)) < len(numbers)

    run(asyncio.wait_for(scenario(), 60))


def test_cancelled_statement_ends_on_the_server_too(database, run):
    sleeping = "SELECT count(*) AS n FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(%%'"

    async def scenario():
        async with await connected(database) as connection:
            asking = asyncio.create_task(fetch(connection, "SELECT pg_sleep(60)"))
            await until(lambda: database.execute(sleeping, []) == [{"n": 1}])
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await fetch(connection, "SELECT 1") == [1]

    run(asyncio.wait_for(scenario(), 30))


async def test_number_of_prepared_statements_is_bounded(database):
    async with await connected(database) as connection:
        for number in range(STATEMENTS_MAX + 20):
            assert await fetch(connection, f"SELECT {number}") == [number]
        assert len(connection._statements) == STATEMENTS_MAX


async def test_large_result_does_not_stay_in_memory(database):
    series = "SELECT * FROM generate_series(1, 10000)"
    async with await connected(database) as connection:
        assert len(await fetch(connection, series)) == 10_000
        assert connection._statements[series]._values.pgresult is None
