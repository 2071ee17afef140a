"""A database that lost commits: a restored dump, a copy of the data folder, a promoted standby.

No fencing token repeats. Workers that lived through it recover by themselves, if the database can
see it. After `leasehold restored`, nothing is sent again unseen that could have a second effect.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from signal import SIGTERM
from typing import TYPE_CHECKING

import pytest

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.store.postgres.errors import translate
from tests.support.cli_process import forked_leasehold
from tests.support.database import Database
from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import Engine, until
from tests.support.failover import Cluster, cluster_folder, dump, load, running
from tests.support.outbox import CLUSTER_LEASE, Outbox
from tests.support.servers import Server
from tests.support.sqlstates import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COUNT = 3
SETTINGS = ROW_LEASE_SETTINGS
# Target, guarantee, terms, and the status of an intent that was sent after the backup.
CLASSES = {
    "lookup": ("lookup", {}, "accepted"),
    "blind": ("blind", {}, "held"),
    "window": ("keyed", {"key_window_seconds": 3600}, "held"),
    "keyed": ("keyed", {}, "accepted"),
    "fenced": ("fenced", {}, "accepted"),
}
SCOPES = {
    "item": {"scope": "item"},
    "stream": {"scope": "stream"},
    "cluster": {"scope": "cluster", "lease_name": CLUSTER_LEASE},
}


def publish_and_enqueue(engine, scope):
    """Publish a target of each class; return the ids of its intents."""
    ids = {}
    for target, (guarantee, terms, _) in CLASSES.items():
        engine.publish(target, guarantee, **terms, **SCOPES[scope])
        streams = {"stream": "s"} if scope == "stream" else {}
        ids[target] = engine.outbox.enqueue(COUNT, target=target, **streams)
    return ids


async def send_everything(engine, ids):
    """Submit all intents, in the database that will be lost."""
    worker = engine.worker(**SETTINGS)
    await engine.until_status([one for found in ids.values() for one in found])
    worker.send(SIGTERM)
    assert await worker.ended() == 0


def restored(engine):
    done = forked_leasehold(
        *("restored", "--note", "backup of last night", "--operator", "ann", "--batch-size", "4"),
        url=engine.database.url_as("operator"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_no_token_repeats(sandbox):
    """Each submission of a key has a newer token than the one before."""
    tokens = {}
    for one in sandbox.requests(limit=1000):
        if one.kind == "submission":
            tokens.setdefault(one.key, []).append(one.fencing_token)
    assert any(len(found) > 1 for found in tokens.values())
    for key, found in tokens.items():
        assert found == sorted(set(found)), key


class World:
    """An engine on a database that will be lost, with intents of each class."""

    def __init__(self, scope, sandbox, logs: Path, database: Database, opened: ExitStack) -> None:
        self._opened = opened
        self.engine = Engine(database, Outbox(database), sandbox, logs)
        opened.callback(database.close)
        opened.callback(self.engine.close)
        self.ids = publish_and_enqueue(self.engine, scope)

    def move_to(self, database: Database) -> None:
        """Work on this database from now on."""
        self._opened.callback(database.close)
        self.engine.database, self.engine.outbox = database, Outbox(database)


@contextmanager
def from_a_dump(scope, sandbox, logs: Path, server: Server) -> Iterator[tuple[World, Callable]]:
    """A dump, taken before anything was sent, that is restored into a new database."""
    with ExitStack() as opened:
        original = Database(server, server.create_database())
        world = World(scope, sandbox, logs, original, opened)
        dump(original.url, logs / "dump")

        def come_back():
            copy = Database(server, server.create_database(empty=True))
            load(logs / "dump", copy.url)
            world.move_to(copy)

        yield world, come_back


@contextmanager
def from_a_copy(scope, sandbox, logs: Path, server: Server) -> Iterator[tuple[World, Callable]]:
    """A copy of the data folder, taken before anything was sent. From inside it looks the same."""
    with cluster_folder() as folder, ExitStack() as opened:
        cluster = opened.enter_context(running(Cluster.create(folder / "original")))
        own = Server(cluster.url, server.version)
        opened.callback(own.close)
        name = own.create_database()
        world = World(scope, sandbox, logs, Database(own, name), opened)
        cluster.stop()
        copy = cluster.copy(folder / "copy", cluster.port)
        cluster.start()
        world.move_to(Database(own, name))

        def come_back():
            cluster.stop()
            opened.enter_context(running(copy))
            world.move_to(Database(own, name))

        yield world, come_back


@contextmanager
def from_a_standby(scope, sandbox, logs: Path, server: Server) -> Iterator[tuple[World, Callable]]:
    """A standby that lagged behind when the primary was lost, and is promoted."""
    with cluster_folder() as folder, ExitStack() as opened:
        primary = opened.enter_context(running(Cluster.create(folder / "primary")))
        own = Server(primary.url, server.version)
        opened.callback(own.close)
        name = own.create_database()
        standby = opened.enter_context(running(primary.standby(folder / "standby")))
        world = World(scope, sandbox, logs, Database(own, name), opened)
        primary.wait_for_standby(standby)
        standby.disconnect()

        def come_back():
            primary.crash()
            standby.promote()
            world.move_to(Database(Server(standby.url, server.version), name))

        yield world, come_back


WORLDS = {"dump": from_a_dump, "copy": from_a_copy, "standby": from_a_standby}
THOROUGH = [
    pytest.param(world, scope, marks=pytest.mark.thorough)
    for world in WORLDS
    for scope in SCOPES
    if (world, scope) not in {("dump", "item"), ("copy", "stream")}
]


@pytest.mark.parametrize(("world", "scope"), [("dump", "item"), ("copy", "stream"), *THOROUGH])
async def test_nothing_is_sent_again_unseen_after_a_restore(
    world, scope, sandbox, tmp_path, server
):
    with WORLDS[world](scope, sandbox, tmp_path, server) as (lost, come_back):
        engine, ids = lost.engine, lost.ids
        await send_everything(engine, ids)
        sent = sandbox.effects().effects
        come_back()
        said = restored(engine)
        assert "has put 9 in doubt" in said
        engine.worker(**SETTINGS)
        for target, (_, _, status) in CLASSES.items():
            await until(
                lambda found=ids[target], status=status: (
                    engine.outbox.make_due() or set(engine.statuses(found)) == {status}
                )
            )
        assert sandbox.effects().effects == sent == COUNT * len(CLASSES)
        assert_no_token_repeats(sandbox)
        [reasons] = engine.database.execute(
            "SELECT count(*) AS rows FROM leasehold.outbox_attempts"
            " WHERE reason = 'database_restored' AND holder = 'ann'"
        )
        assert reasons["rows"] == 3 * COUNT


@pytest.mark.parametrize("elector", ["row", "advisory"])
async def test_workers_recover_by_themselves_from_a_promotion(elector, sandbox, tmp_path, server):
    """The change is visible from inside, so no person is needed for keyed and fenced."""
    with cluster_folder() as folder, ExitStack() as opened:
        primary = opened.enter_context(running(Cluster.create(folder / "primary")))
        own = Server(primary.url, server.version)
        opened.callback(own.close)
        original = Database(own, own.create_database())
        opened.callback(original.close)
        standby = opened.enter_context(running(primary.standby(folder / "standby")))
        engine = Engine(original, Outbox(original), sandbox, tmp_path)
        opened.callback(engine.close)
        for scope, terms in SCOPES.items():
            engine.publish(scope, "fenced", **terms)
        kept = enqueue_in_all_scopes(engine)
        primary.wait_for_standby(standby)
        standby.disconnect()
        url = of_both(original.url_as("executor"), primary, standby)
        timings = SETTINGS | {"cluster_ping_seconds": "0.3"}
        workers = [engine.worker(url=url, elector=elector, **timings) for _ in range(2)]
        await engine.until_status(kept)
        primary.crash()
        standby.promote()
        engine.database = Database(Server(standby.url, server.version), original.name)
        opened.callback(engine.database.close)
        engine.outbox = Outbox(engine.database)
        for worker in workers:
            await worker.logged("generation_changed")
        # One that learned of it late has dropped what it claimed meanwhile.
        engine.outbox.expire_claims()
        await engine.until_status(kept)
        await engine.until_status(enqueue_in_all_scopes(engine))
        assert_no_token_repeats(sandbox)
        assert sandbox.effects().doubled_keys == 0
        for worker in workers:
            changed = await worker.logged("generation_changed")
            assert changed["generation_no"] == 2
            assert worker.lines("stale_token_refused") == []
        assert sum(one.lines("generation_changed")[0]["begun_here"] for one in workers) == 1
        [row] = engine.database.execute("SELECT count(*) AS rows FROM leasehold.generations")
        assert row["rows"] == 2


def enqueue_in_all_scopes(engine):
    return [
        intent_id
        for scope in SCOPES
        for intent_id in engine.outbox.enqueue(
            4, target=scope, **({"stream": "s"} if scope == "stream" else {})
        )
    ]


def of_both(url, primary, standby):
    """The URL of whichever server takes writes."""
    assert f"port={primary.port}" in url
    return (
        url.replace("host=127.0.0.1", "host=127.0.0.1,127.0.0.1").replace(
            f"port={primary.port}", f"port={primary.port},{standby.port}"
        )
        + " target_session_attrs=read-write"
    )


async def test_workers_wait_while_a_restore_is_repaired(engine):
    engine.publish("sms", "keyed")
    worker = engine.worker()
    await engine.until_status(engine.outbox.enqueue(2))
    engine.outbox.call("operator", "begin_restored_generation", "ann", "a snapshot")
    await worker.logged("restore_awaited")
    [waiting] = engine.outbox.enqueue(1)
    refused = await until(
        lambda: [one for one in worker.lines("service_failed") if "restored" in one["error"]]
    )
    assert refused[0]["service"] in {"executor", "heartbeat"}
    assert engine.outbox.states(waiting) == []
    restored(engine)
    await engine.until_status([waiting])
    assert [one["begun_here"] for one in worker.lines("generation_changed")] == [False]


@pytest.mark.parametrize("elector", ["row", "advisory"])
async def test_calls_in_flight_end_when_a_generation_begins(engine, elector):
    """What the database still knows is recorded: nothing is in doubt, and nothing is sent twice."""
    engine.publish("stream", "blind", scope="stream")
    engine.publish("cluster", "blind", **SCOPES["cluster"])
    # Long enough for calls to be in flight when a busy machine gets to the fault.
    engine.sandbox.set_faults(latency_ms=4500)
    worker = engine.worker(elector=elector, **SETTINGS | {"cluster_ping_seconds": "0.3"})
    ids = [
        *engine.outbox.enqueue(1, target="stream", stream="s"),
        *engine.outbox.enqueue(1, target="cluster"),
    ]
    await engine.until_in_flight(await worker.started(), 2)
    engine.database.owner_execute("UPDATE leasehold.generations SET database_identity = 'another'")
    await worker.logged("generation_changed")
    engine.sandbox.set_faults()
    await engine.until_status(ids)
    assert [engine.outbox.states(one) for one in ids] == [["DISPATCHED"], ["DISPATCHED"]]
    again = [
        *engine.outbox.enqueue(2, target="stream", stream="s"),
        *engine.outbox.enqueue(1, target="cluster"),
    ]
    await engine.until_status(again)
    assert engine.sandbox.effects("blind").doubled_keys == 0
    assert worker.lines("leader_lost")[0]["sql_error"].startswith("GenerationChanged")


async def test_standby_grants_nothing(server):
    """Its clients see a database that is unavailable, and try again: it may be promoted."""
    with cluster_folder() as folder, ExitStack() as opened:
        primary = opened.enter_context(running(Cluster.create(folder / "primary")))
        own = Server(primary.url, server.version)
        opened.callback(own.close)
        name = own.create_database()
        standby = opened.enter_context(running(primary.standby(folder / "standby")))
        copy = Database(Server(standby.url, server.version), name)
        opened.callback(copy.close)
        with refused("55000") as caught:
            Outbox(copy).claim()
        assert isinstance(translate(caught.value), DatabaseUnavailable)
