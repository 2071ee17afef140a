"""Connections, waits and calls are bounded; the server enforces the limits."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument
from leasehold.embedded.server import EmbeddedPostgres
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres import pool as module
from leasehold.store.postgres.migrate import migrate
from leasehold.store.postgres.pool import CACHE_SIZE, Pool
from leasehold.store.postgres.query import Query, first_column
from leasehold.store.postgres.store import PostgresStore
from tests.support.engine import until
from tests.support.servers import available_binaries

pytestmark = pytest.mark.one_server

BOTH_WAYS = pytest.mark.parametrize("through_pooler", [False, True], ids=["direct", "pooled"])


@asynccontextmanager
async def query_on(url, **settings):
    pool = Pool(url, PoolSettings(**settings))
    await pool.open()
    try:
        yield Query(pool)
    finally:
        await pool.close()


@BOTH_WAYS
async def test_limits_are_settings_of_the_server_session(database, through_pooler):
    names = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]
    async with query_on(
        database.url_as("executor"),
        through_pooler=through_pooler,
        statement_seconds=4.5,
        lock_seconds=2,
        idle_in_transaction_seconds=3,
        application_name="leasehold test",
    ) as query:
        seen = await query.rows(
            lambda _cursor: tuple,
            "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)",
            names,
        )
        activity = await query.value(
            "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        )
    assert dict(seen) == dict(zip(names, ["4500", "2000", "3000"], strict=True))
    assert activity == "leasehold test"


async def test_limits_keep_the_options_of_the_database_url(database):
    url = make_conninfo(database.url, options="-c search_path=leasehold")
    async with query_on(url) as query:
        assert await query.value("SELECT current_setting('search_path')") == "leasehold"
        assert await query.value("SELECT current_setting('statement_timeout')") == "5s"


@BOTH_WAYS
async def test_long_statement_is_cancelled_by_the_server(database, through_pooler):
    async with query_on(
        database.url, through_pooler=through_pooler, statement_seconds=2, lock_seconds=1
    ) as query:
        with pytest.raises(DatabaseUnavailable) as raised:
            await query.value("SELECT pg_sleep(600)")
        assert raised.value.is_rolled_back
        assert await query.value("SELECT 1") == 1


@BOTH_WAYS
async def test_call_is_one_transaction_and_committed_on_return(database, through_pooler):
    async with query_on(database.url, through_pooler=through_pooler) as query:
        first = await query.value("SELECT pg_current_xact_id()::text")
        status = "SELECT pg_xact_status(%s::xid8) AS status"
        assert database.execute(status, [first]) == [{"status": "committed"}]
        idle = "SELECT state FROM pg_stat_activity WHERE application_name = 'leasehold'"
        assert {row["state"] for row in database.execute(idle)} == {"idle"}


async def test_pooled_call_leaves_nothing_in_the_session(database):
    async with query_on(database.url, through_pooler=True, size_max=1) as query:
        for _ in range(10):  # more often than psycopg's prepare threshold
            await query.value("SELECT 1")
        async with query._pool.connection() as connection:
            found = await connection.execute(
                "SELECT current_setting('statement_timeout'),"
                " (SELECT count(*) FROM pg_prepared_statements)"
            )
            assert await found.fetchone() == ("0", 0)


async def test_pool_never_has_more_connections_than_its_bound(database):
    async with query_on(database.url, size_max=2, application_name="bounded") as query:
        await asyncio.gather(*[query.value("SELECT pg_sleep(0.02)") for _ in range(20)])
        count = "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'bounded'"
        assert database.execute(count) == [{"n": 2}]


PID = "SELECT pg_backend_pid()"


async def test_most_used_connection_is_lent_first(database):
    """It does not matter what other connections did, or in which order they were returned."""
    async with query_on(database.url, size_min=4, size_max=4) as query:
        warm = {await query.value(PID) for _ in range(10)}
        assert len(warm) == 1
        for seconds in ([0.02, 0.04, 0.06], [0.06, 0.04, 0.02]):
            sleeps = [query.value("SELECT pg_sleep(%s)", one) for one in seconds]
            await asyncio.gather(*sleeps)
            assert {await query.value(PID) for _ in range(3)} == warm


@pytest.mark.parametrize("cache_seconds", [0, 3600])
async def test_waiting_call_gets_a_connection_before_the_cache_does(
    database, monkeypatch, cache_seconds
):
    monkeypatch.setattr(module, "CACHE_SECONDS", cache_seconds)
    async with query_on(database.url, size_max=1, wait_seconds=5) as query:
        pids = await asyncio.gather(*[query.value(PID) for _ in range(50)])
    assert len(set(pids)) == 1


async def test_cached_connection_returns_to_the_pool_after_a_while(database, monkeypatch):
    async with query_on(database.url, size_min=2, size_max=2) as query:
        monkeypatch.setattr(module, "CACHE_SECONDS", 0)
        await asyncio.gather(*[query.value("SELECT pg_sleep(0.05)") for _ in range(2)])
        assert len({await query.value(PID) for _ in range(10)}) == 2


async def test_connection_that_broke_during_a_call_is_not_used_again(database):
    async with query_on(database.url) as query:
        for _ in range(3):
            pid = await query.value(PID)
            with pytest.raises(DatabaseUnavailable):
                await query.value("SELECT pg_terminate_backend(pg_backend_pid())")
            assert await query.value(PID) != pid


LISTS = {
    "uuid": [uuid4() for _ in range(1000)],
    "integer": [1, 2, 70_000],
    "bigint": [1, 2**40],
    "float8": [0.25, 1e300],
    "boolean": [True, False],
    "text": ["a", None, 'b"c', "{}"],
    "timestamptz": [datetime(2026, 1, 2, tzinfo=UTC)],
}


@BOTH_WAYS
@pytest.mark.parametrize("kind", LISTS)
async def test_list_reaches_the_server_unchanged(database, through_pooler, kind):
    async with query_on(database.url, through_pooler=through_pooler) as query:
        for _ in range(3):  # also after the statement is prepared, and with another number type
            for given in (LISTS[kind], LISTS[kind][:1], []):
                assert await query.value(f"SELECT %s::{kind}[]", given) == given


async def test_each_call_chooses_its_row_factory(database):
    async with query_on(database.url) as query:
        made = [
            await query.rows(lambda _, kind=kind: kind, "SELECT 1 AS a, 2 AS b")
            for kind in (tuple, list, tuple)
        ]
    assert made == [[(1, 2)], [[1, 2]], [(1, 2)]]


async def test_closed_pool_leaves_no_connection_behind(database):
    async with query_on(database.url, application_name="left behind") as query:
        await query.value("SELECT 1")
    count = "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'left behind'"
    await until(lambda: database.execute(count) == [{"n": 0}])


async def test_wait_for_a_connection_is_bounded_in_time_and_in_number(database):
    limits = {"size_max": 1, "wait_seconds": 2, "waiting_max": 1}
    async with query_on(database.url, **limits, statement_seconds=600) as query:
        busy = asyncio.create_task(query.value("SELECT pg_sleep(600)"))
        await until(lambda: is_sleeping(database))
        waiting = asyncio.create_task(query.value("SELECT 1"))
        await until(lambda: query._pool._pool.get_stats().get("requests_waiting"))
        with pytest.raises(DatabaseUnavailable, match="the database did not answer"):
            await query.value("SELECT 1")
        assert not waiting.done()
        with pytest.raises(DatabaseUnavailable, match=r"2\.00 sec"):
            await waiting
        busy.cancel()


def is_sleeping(database):
    return database.execute(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
        "   AND wait_event = 'PgSleep'"
    )


@BOTH_WAYS
async def test_cancelled_call_gives_its_connection_back(database, through_pooler):
    async with query_on(database.url, size_max=1, through_pooler=through_pooler) as query:
        task = asyncio.create_task(query.value("SELECT pg_sleep(600)"))
        await until(lambda: is_sleeping(database))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await query.value("SELECT 1") == 1


async def test_error_in_a_pooled_call_is_raised_unchanged(database):
    async with query_on(database.url, through_pooler=True) as query:
        with pytest.raises(InvalidArgument, match="division by zero"):
            await query.rows(first_column, "SELECT 1 / 0")
        assert await query.value("SELECT 1") == 1


async def test_error_of_an_unreachable_database_has_the_reason_but_no_password(database):
    parts = conninfo_to_dict(database.url)
    wrong = make_conninfo(database.url, password="hunter1")
    gone = make_conninfo(database.url, port=1, password="hunter1")
    for url, reason in ((wrong, str(parts["user"])), (gone, "refused")):
        with pytest.raises(DatabaseUnavailable, match=reason) as raised:
            async with PostgresStore(url):
                pass
        assert "hunter1" not in str(raised.value)


@pytest.fixture
def mortal(postgres):
    """Start a separate server, for a test that stops it."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-mortal-"))
    folder.chmod(0o711)  # as root the server runs as another user
    server = EmbeddedPostgres(
        folder / "data", binaries=available_binaries()[postgres], settings={"fsync": "off"}
    )
    with server:
        migrate(server.url)
        yield server
    shutil.rmtree(folder)


@BOTH_WAYS
async def test_restarted_database_is_unavailable_and_then_available_again(mortal, through_pooler):
    settings = PoolSettings(wait_seconds=1, through_pooler=through_pooler)
    async with PostgresStore(mortal.url, settings) as store:
        assert (await store.acquire_lease("leader", "a", 30)).is_ours
        await asyncio.to_thread(mortal.stop)
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                await store.acquire_lease("leader", "a", 30)
        assert time.monotonic() - began < 2 * settings.call_seconds
        await asyncio.to_thread(mortal.start)
        deadline = time.monotonic() + 15
        while True:
            try:
                answer = await store.acquire_lease("leader", "a", 30)
            except DatabaseUnavailable:
                assert time.monotonic() < deadline
            else:
                break
        assert (answer.is_ours, answer.lease.holder_id) == (False, "a")


async def test_connection_that_the_server_closed_is_not_lent(mortal):
    count = CACHE_SIZE + 3  # the pool has some of them, too
    pool = Pool(mortal.url, PoolSettings(size_max=count))
    await pool.open()
    try:
        await answers_of_all_connections(pool, count)
        await asyncio.to_thread(mortal.stop)
        await asyncio.to_thread(mortal.start)
        assert await answers_of_all_connections(pool, count) == [1] * count
    finally:
        await pool.close()


async def answers_of_all_connections(pool, count):
    """Borrow this many connections at once, and run a statement on each."""
    async with AsyncExitStack() as lent:
        connections = [await lent.enter_async_context(pool.connection()) for _ in range(count)]
        return [(await one.fetch("SELECT 1", [], first_column))[0] for one in connections]


@BOTH_WAYS
async def test_call_on_a_silent_network_ends_in_time(database, through_pooler):
    parts = conninfo_to_dict(database.url)
    async with swallowing_network(parts["host"], parts["port"]) as (port, swallow):
        url = make_conninfo(database.url, port=port)
        async with query_on(
            url,
            through_pooler=through_pooler,
            size_max=1,
            wait_seconds=1,
            statement_seconds=1,
            lock_seconds=0.5,
        ) as query:
            assert await query.value("SELECT 1") == 1
            swallow()
            with pytest.raises(DatabaseUnavailable):
                await asyncio.wait_for(query.value("SELECT 1"), 40)


@asynccontextmanager
async def swallowing_network(host, port):
    """Return a proxy to the server that can stop forwarding without closing connections."""
    is_open = asyncio.Event()
    is_open.set()
    tasks, writers = [], []

    async def pass_on(reader, writer):
        while data := await reader.read(65536):
            if is_open.is_set():
                writer.write(data)
                await writer.drain()
        writer.close()

    async def join(reader, writer):
        there = await asyncio.open_connection(host, port)
        writers.extend([writer, there[1]])
        tasks.append(asyncio.create_task(pass_on(reader, there[1])))
        tasks.append(asyncio.create_task(pass_on(there[0], writer)))

    server = await asyncio.start_server(join, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], is_open.clear
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.close()
