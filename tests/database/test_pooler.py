"""Everything works through pgbouncer in transaction mode: many clients, two sessions."""

from __future__ import annotations

import asyncio
from collections import Counter

import psycopg
import pytest

from leasehold.domain.errors import DatabaseUnavailable, LeaseLost
from leasehold.domain.intent import NewIntent
from leasehold.domain.outcome import Accepted, Result, Retryable
from leasehold.domain.verdict import BeginVerdict, RecordVerdict, RenewVerdict
from leasehold.store.pool_settings import PoolSettings
from leasehold.store.postgres.store import PostgresStore
from tests.support.pooler import SESSIONS

pytestmark = pytest.mark.program("pgbouncer")
TASKS = 50
SETTINGS = PoolSettings(through_pooler=True, size_max=TASKS, statement_seconds=20, wait_seconds=20)


async def test_many_tasks_claim_and_complete_items_over_two_sessions(pooler, outbox):
    outbox.publish("sms", guarantee="lookup")
    async with PostgresStore(pooler.url, SETTINGS) as store:

        async def work(number):
            worker = f"worker-{number}"
            intent = NewIntent(target="sms", payload={"n": number}, idempotency_key=str(number))
            intent_id = await store.enqueue_intent(intent)
            claimed = []
            while not claimed:
                claimed = await store.claim_outbox_batch(1, worker, 60, ["sms"])
            claims = [one.claim for one in claimed]
            renewed = await store.renew_outbox_leases(worker, claims, 60)
            begun = await store.begin_outbox_attempts(worker, claims)
            done = [
                Result(intent_id=one.intent_id, lease_token=one.lease_token, outcome=Accepted())
                for one in claimed
            ]
            recorded = await store.complete_outbox_attempts(worker, done)
            return intent_id, renewed[0].verdict, begun[0].verdict, recorded[0].verdict

        answers = await asyncio.gather(*[work(number) for number in range(TASKS)])
        statuses = await store.read_status([answer[0] for answer in answers])
        assert await sessions_of(store) == SESSIONS
    expected = (RenewVerdict.RENEWED, BeginVerdict.BEGUN, RecordVerdict.APPLIED)
    assert Counter(answer[1:] for answer in answers) == {expected: TASKS}
    assert Counter(one.status for one in statuses) == {"accepted": TASKS}


async def test_winner_of_many_acquires_keeps_its_lease_through_a_pooler(pooler):
    async with PostgresStore(pooler.url, SETTINGS) as store:
        asked = [store.acquire_lease("leader", f"holder-{n}", 60) for n in range(TASKS)]
        answers = await asyncio.gather(*asked)
        [lease] = [answer.lease for answer in answers if answer.is_ours]
        await asyncio.gather(*[store.renew_lease(lease, 60) for _ in range(TASKS)])
        await store.record_leader_heartbeat(lease, {})
        assert await store.release_lease(lease)
        with pytest.raises(LeaseLost):
            await store.renew_lease(lease, 60)
        assert (await store.acquire_lease("leader", "next", 60)).lease.epoch == lease.epoch + 1


async def test_leader_records_its_results_through_a_pooler(pooler, outbox):
    outbox.publish("bank", scope="cluster", lease_name="leader")
    outbox.enqueue(5, target="bank")
    async with PostgresStore(pooler.url_as("executor"), SETTINGS) as store:
        lease = (await store.acquire_lease("leader", "a", 60)).lease
        due = await store.refresh_due_rows("a", [lease], ["bank"], 10)
        ids = [one.intent_id for one in due]
        await store.begin_leased_attempts(lease, ids)
        later = Retryable(retry_after_seconds=60)
        recorded = await store.record_attempts(
            lease, [Result(intent_id=one, outcome=later) for one in ids[:2]]
        )
        assert {one.state for one in recorded} == {"RETRYABLE"}
        accepted = [Result(one, Accepted(code="200"), None, 0.25) for one in ids[2:]]
        assert await store.record_attempts(lease, accepted, tell_dispatched=False) == []
        left = await store.refresh_due_rows("a", [lease], ["bank"], 10)
        assert {one.intent_id for one in left} == set(ids[:2])


async def test_limits_of_a_call_do_not_leak_to_other_clients(pooler):
    settings = PoolSettings(through_pooler=True, statement_seconds=2, lock_seconds=1)
    async with PostgresStore(pooler.url, settings) as store:
        with pytest.raises(DatabaseUnavailable) as raised:
            await store._query.value("SELECT pg_sleep(600)")
        assert raised.value.is_rolled_back
    with psycopg.connect(pooler.url, prepare_threshold=None) as other:
        for _ in range(SESSIONS * 2):
            assert other.execute("SHOW statement_timeout").fetchone() == ("0",)
            other.commit()


async def test_application_name_reaches_the_server(pooler):
    settings = PoolSettings(through_pooler=True, application_name="leasehold pooled")
    async with PostgresStore(pooler.url, settings) as store:
        shown = await store._query.value("SELECT current_setting('application_name')")
    assert shown == "leasehold pooled"


async def test_missing_pooler_setting_is_reported(pooler):
    with pytest.raises(DatabaseUnavailable, match="set LEASEHOLD_THROUGH_POOLER=true"):
        async with PostgresStore(pooler.url):
            pass


async def sessions_of(store):
    """Return the number of server sessions that many concurrent calls use."""
    asked = [
        store._query.value("SELECT pg_backend_pid() FROM pg_sleep(0.01)") for _ in range(TASKS)
    ]
    return len(set(await asyncio.gather(*asked)))
