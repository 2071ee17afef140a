"""The reads behind the HTTP API: content, queues, instances and leases, in pages."""

from __future__ import annotations

from uuid import UUID

import pytest

from leasehold.domain.intent import IntentId, NewIntent
from leasehold.store.postgres.store import PostgresStore
from tests.support.outbox import CLUSTER_LEASE

pytestmark = pytest.mark.one_server

NOBODY = IntentId(UUID(int=5))


@pytest.fixture
async def auditor(database):
    async with PostgresStore(database.url_as("auditor")) as store:
        yield store


async def test_content_is_read_as_it_was_accepted(stores, auditor, outbox):
    outbox.publish()
    given = [
        NewIntent(target="sms", payload={"b": [1.5, None], "a": "ü"}, metadata={"trace": 1}),
        NewIntent(target="sms", body=b"\x00\xff", content_type="application/octet-stream"),
    ]
    ids = [await stores.ingest.enqueue_intent(new) for new in given]
    first, second = [await auditor.read_content(intent_id) for intent_id in ids]
    assert first.payload.value() == {"b": [1.5, None], "a": "ü"}
    assert first.metadata.value() == {"trace": 1}
    assert (first.body, first.content_type) == (None, None)
    assert (second.payload, second.body) == (None, b"\x00\xff")
    assert second.content_type == "application/octet-stream"
    assert await auditor.read_content(NOBODY) is None


async def test_instances_are_read_in_pages_and_dead_ones_are_shown_as_such(stores, database):
    for name in ("a", "b", "c"):
        await stores.executor.renew_instance(name, "worker", [], {"pid": 7}, 30)
    database.owner_execute(
        "UPDATE leasehold.instances SET alive_until = clock_timestamp() WHERE instance_id = 'b'"
    )
    first = await stores.readonly.read_instances(None, 2)
    rest = await stores.readonly.read_instances("b", 2)
    found = {one.instance_id: one.is_alive for one in [*first, *rest]}
    assert found == {"a": True, "b": False, "c": True}
    assert len(first) == 2
    assert first[0].role == "worker"
    assert first[0].detail.value() == {"pid": 7}
    assert first[0].started_at <= first[0].seen_at < first[0].expires_at


async def test_leases_are_read_by_the_prefix_of_their_names(stores, outbox):
    names = ["stream/a/1", "stream/a/2", "stream/a/\u00fc", "stream/ab/1", "t", "stream"]
    for target, *streams in (["a", "1", "2", "\u00fc"], ["ab", "1"]):
        outbox.publish(target, scope="stream")
        for stream in streams:
            outbox.enqueue(target=target, stream=stream)
    await stores.executor.claim_streams(10, "holder", 30, 0, ["a", "ab"])
    for name in ("t", "stream"):
        await stores.executor.acquire_lease(name, "holder", 30)
    outbox.expire_lease("stream/a/2")
    reader = stores.readonly
    found = await reader.read_leases("stream/a/", None, 10)
    assert [one.lease_name for one in found] == ["stream/a/1", "stream/a/2", "stream/a/\u00fc"]
    assert [one.is_live for one in found] == [True, False, True]
    assert {(one.holder_id, one.lease_epoch) for one in found} == {("holder", 1)}
    after = await reader.read_leases("stream/a/", "stream/a/1", 1)
    assert [one.lease_name for one in after] == ["stream/a/2"]
    everything = await reader.read_leases(None, None, 10)
    assert [one.lease_name for one in everything] == sorted(names, key=str.encode)


async def test_lease_that_nobody_ever_held_is_not_shown(stores, database):
    database.owner_execute(
        "INSERT INTO leasehold.leases VALUES"
        " (%s, 'x', 0, clock_timestamp(), clock_timestamp(), '-infinity', '-infinity')",
        [CLUSTER_LEASE],
    )
    assert await stores.readonly.read_leases(None, None, 10) == []
