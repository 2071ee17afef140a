"""Each method of the store, with the role that needs it, on the real functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest

from leasehold.domain.intent import AttemptState, IntentId, NewIntent
from leasehold.domain.lease import StreamState
from leasehold.domain.outcome import (
    Accepted,
    Deferral,
    Rejected,
    Result,
    Retryable,
    Unknown,
)
from leasehold.domain.verdict import (
    BeginVerdict,
    EnqueueVerdict,
    RecordVerdict,
    ReleaseVerdict,
    RenewVerdict,
)

pytestmark = pytest.mark.one_server

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
async def sms(stores):
    """Publish a target with a keyed gateway."""
    await stores.operator.publish_contract(
        "sms", {"scope": "item", "guarantee": "keyed", "gateway": None}, "ann"
    )
    return "sms"


@pytest.fixture
async def payments(stores):
    """Publish a target with a lookup gateway."""
    terms = {"scope": "item", "guarantee": "lookup", "gateway": None}
    await stores.operator.publish_contract("payments", terms, "ann")
    return "payments"


async def enqueue(stores, target, count=1, **fields):
    """Enqueue intents that must be accepted, and return their ids."""
    given = [NewIntent(target=target, payload={"number": n}, **fields) for n in range(count)]
    answers = await stores.ingest.enqueue_intents(given)
    assert {answer.verdict for answer in answers} == {EnqueueVerdict.ACCEPTED}
    return [answer.intent_id for answer in answers]


async def claim(stores, *targets, worker="w", seconds=30):
    return await stores.executor.claim_outbox_batch(10, worker, seconds, targets)


def results(claimed, outcome):
    return [
        Result(intent_id=c.intent_id, lease_token=c.lease_token, outcome=outcome) for c in claimed
    ]


async def test_claim_returns_everything_that_a_call_needs(stores, outbox, sms):
    due = datetime.now(UTC) + timedelta(hours=1)
    deadline = datetime.now(UTC) + timedelta(days=1)
    intent_id = await stores.ingest.enqueue_intent(
        NewIntent(
            target=sms,
            body=b"\x00signed",
            content_type="application/octet-stream",
            priority=0,
            due_at=due,
            deadline_at=deadline,
            metadata={"source": "test"},
            trace_context="00-trace",
        )
    )
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = due_at - interval '2 hours'"
    )
    [claimed] = await claim(stores, sms)
    assert claimed.intent_id == claimed.claim.intent_id == claimed.submission_key == intent_id
    assert (claimed.body, claimed.payload) == (b"\x00signed", None)
    assert claimed.metadata.value() == {"source": "test"}
    assert (claimed.due_at, claimed.deadline_at) == (due - timedelta(hours=2), deadline)
    assert (claimed.attempt_no, claimed.last_state, claimed.priority) == (1, None, 0)
    assert claimed.trace_context == "00-trace"
    [row] = outbox.database.execute(
        "SELECT claimed_by, lease_token, lease_expires_at FROM leasehold.outbox_pending"
    )
    assert (row["claimed_by"], row["lease_token"]) == ("w", claimed.lease_token)
    assert timedelta(seconds=29) < row["lease_expires_at"] - claimed.claimed_at


async def test_payload_comes_unparsed_and_equal(stores, sms):
    payload = {"text": "grüße \N{GRINNING FACE}", "list": [1, 2.5, None, True], "big": 10**30}
    await stores.ingest.enqueue_intent(NewIntent(target=sms, payload=payload))
    [claimed] = await claim(stores, sms)
    assert isinstance(claimed.payload.raw, bytes)
    assert claimed.payload.value() == payload


async def test_dispatched_results_can_be_left_out_of_the_reply(stores, outbox, sms):
    await enqueue(stores, sms, 4)
    sent, failed, doubtful, stale = claimed = await claim(stores, sms)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET lease_expires_at = now() WHERE intent_id = %s",
        [stale.intent_id],
    )
    outcomes = [Accepted(), Rejected(reason="no"), Unknown(retry_after_seconds=0), Accepted()]
    given = [results([one], what)[0] for one, what in zip(claimed, outcomes, strict=True)]
    answers = await stores.executor.complete_outbox_attempts("w", given, tell_dispatched=False)
    assert {one.intent_id: (one.verdict, one.state) for one in answers} == {
        failed.intent_id: (RecordVerdict.APPLIED, AttemptState.FAILED),
        doubtful.intent_id: (RecordVerdict.APPLIED, AttemptState.IN_DOUBT),
        stale.intent_id: (RecordVerdict.LEASE_LOST, None),
    }
    [attempt] = await stores.readonly.read_ledger([sent.intent_id])
    assert attempt.state is AttemptState.DISPATCHED


async def test_repair_names_the_silent_holder(stores, outbox, sms, payments):
    await enqueue(stores, sms)
    await enqueue(stores, payments)
    claimed = await claim(stores, sms, payments)
    begun = [one.claim for one in claimed if one.target == payments]
    await stores.executor.begin_outbox_attempts("w", begun)
    outbox.expire_claims(seconds_ago=7)
    repaired = {one.target: one for one in await stores.executor.repair_expired_leases(10, "r")}
    assert repaired[sms].state is AttemptState.ZOMBIE_REQUEUE
    assert repaired[payments].state is AttemptState.IN_DOUBT
    assert {one.replaced_holder for one in repaired.values()} == {"w"}
    assert all(7 <= one.stale_seconds < 60 for one in repaired.values())


async def test_work_of_a_leader_is_read_begun_and_recorded_under_its_lease(stores):
    store = stores.executor
    terms = {"scope": "cluster", "guarantee": "lookup", "gateway": None, "lease_name": "leader"}
    await stores.operator.publish_contract("bank", terms, "ann")
    ids = await enqueue(stores, "bank", 3)
    lease = (await store.acquire_lease("leader", "a", 30)).lease
    window = await store.refresh_due_rows("a", [lease], ["bank"], 2)
    assert [one.intent_id for one in window] == sorted(ids)[:2]
    changed = await store.refresh_schedule("a", [lease], None, 10)
    assert {one.intent_id for one in changed} == set(ids)
    assert all(one.begun_at is None for one in changed)
    seen = await store.read_open_writers()
    assert (seen.seen_at > changed[-1].version, seen.began_at) == (True, {})
    cursor = (changed[-1].version, changed[-1].intent_id)
    assert await store.refresh_schedule("a", [lease], cursor, 10) == []
    begun = {one.intent_id: one for one in await store.begin_leased_attempts(lease, ids[:2])}
    assert {one.verdict for one in begun.values()} == {BeginVerdict.BEGUN}
    assert begun[ids[0]].payload.value() == {"number": 0}
    answers = await store.record_attempts(
        lease,
        [
            Result(intent_id=ids[0], outcome=Accepted(), elapsed_seconds=0.1),
            Result(intent_id=ids[1], outcome=Unknown(retry_after_seconds=0)),
        ],
    )
    assert {one.intent_id: one.state for one in answers} == {
        ids[0]: AttemptState.DISPATCHED,
        ids[1]: AttemptState.IN_DOUBT,
    }
    [attempt] = await stores.readonly.read_ledger([ids[0]])
    assert (attempt.lease_name, attempt.lease_epoch) == ("leader", 1)


@pytest.mark.parametrize("is_told", [True, False])
async def test_accepted_results_are_recorded_under_the_lease_with_their_details(stores, is_told):
    store = stores.executor
    terms = {"scope": "cluster", "guarantee": "keyed", "gateway": None, "lease_name": "leader"}
    await stores.operator.publish_contract("bank", terms, "ann")
    ids = await enqueue(stores, "bank", 3)
    missing = IntentId(uuid4())
    lease = (await store.acquire_lease("leader", "a", 30)).lease
    said = Accepted(reference="r-1", code="201", detail="well\nreceived") if is_told else Accepted()
    outcomes = {ids[0]: said, ids[1]: Accepted(), missing: Accepted(), ids[2]: said}
    results = [Result(one, outcome, None, 0.5) for one, outcome in outcomes.items()]
    [other] = await store.record_attempts(lease, results, tell_dispatched=False)
    assert (other.intent_id, other.verdict) == (missing, RecordVerdict.NOT_FOUND)
    for one in ids:
        [row] = await stores.readonly.read_ledger([one])
        outcome = outcomes[one]
        assert (row.state, row.lease_epoch, row.attempt_no) == (AttemptState.DISPATCHED, 1, 1)
        expected = (outcome.reference, outcome.code, outcome.detail)
        assert (row.reference, row.code, row.detail) == expected
        assert row.finished_at - row.started_at == timedelta(seconds=0.5)


async def test_marked_call_cannot_be_cancelled_until_it_is_unmarked(stores):
    store = stores.executor
    terms = {"scope": "cluster", "guarantee": "keyed", "gateway": None, "lease_name": "leader"}
    await stores.operator.publish_contract("bank", terms, "ann")
    first, second = await enqueue(stores, "bank", 2)
    lease = (await store.acquire_lease("leader", "a", 30)).lease
    rows = {one.intent_id: one for one in await store.refresh_due_rows("a", [lease], ["bank"], 9)}
    marked = await store.mark_calls(lease, [rows[first]], 1)
    [call] = marked.calls
    assert (call.intent_id, call.payload.value(), marked.left_out) == (first, {"number": 0}, [])
    assert len((await store.mark_calls(lease, [rows[second]], 2)).calls) == 1
    for intent_id in (first, second):
        verdict = await stores.operator.cancel_intent(intent_id, "ann", "a test")
        assert verdict == "in_flight"
    await store.unmark_calls(lease, [second])
    assert await stores.operator.cancel_intent(first, "ann", "a test") == "cancelled"
    assert (await store.mark_calls(lease, list(rows.values()), 3)).left_out == [first]


async def test_call_is_marked_with_or_without_its_content(stores):
    store = stores.executor
    terms = {"scope": "cluster", "guarantee": "keyed", "gateway": None, "lease_name": "leader"}
    await stores.operator.publish_contract("bank", terms, "ann")
    for number in range(3):
        await stores.ingest.enqueue_intent(
            NewIntent(
                target="bank",
                payload={"number": number},
                deadline_seconds=60,
                trace_context="00-1-2-01",
                metadata={"number": number},
            )
        )
    lease = (await store.acquire_lease("leader", "a", 30)).lease
    [tried, _, _] = await store.refresh_due_rows("a", [lease], ["bank"], 10)
    await store.record_attempts(
        lease, [Result(intent_id=tried.intent_id, outcome=Retryable(retry_after_seconds=0))]
    )
    whole = await store.refresh_due_rows("a", [lease], ["bank"], 10, 1000)
    bare = await store.refresh_due_rows("a", [lease], ["bank"], 10)
    assert [row.has_content for row in whole + bare] == [True] * 3 + [False] * 3
    first = await store.mark_calls(lease, whole, 1)
    second = await store.mark_calls(lease, [*bare[:2], whole[2]], 2)
    assert first.left_out == second.left_out == []
    assert [call.intent_id for call in first.calls] == [row.intent_id for row in whole]
    for ours, theirs in zip(first.calls, second.calls, strict=True):
        assert ours.payload.value() == theirs.payload.value()
        same = {"claimed_at": ours.claimed_at, "payload": ours.payload, "metadata": ours.metadata}
        same |= {"first_tried_at": ours.first_tried_at} if ours.attempt_no == 1 else {}
        assert theirs._replace(**same) == ours
        assert ours.due_at < ours.claimed_at == first.marked_at <= theirs.claimed_at


@pytest.mark.parametrize(
    ("guarantee", "payload", "content_bytes"),
    [
        ("lookup", "small", 1000),
        ("keyed", "".join(map(str, range(500))), 1000),
        ("keyed", "x" * 50_000, 1000),  # a few bytes, as it is stored
        ("keyed", "small", 0),
    ],
)
async def test_window_omits_content_that_is_large_unrequested_or_must_be_begun(
    stores, guarantee, payload, content_bytes
):
    store = stores.executor
    terms = {"scope": "cluster", "guarantee": guarantee, "gateway": None, "lease_name": "leader"}
    await stores.operator.publish_contract("bank", terms, "ann")
    await stores.ingest.enqueue_intent(NewIntent(target="bank", payload=payload))
    lease = (await store.acquire_lease("leader", "a", 30)).lease
    [row] = await store.refresh_due_rows("a", [lease], ["bank"], 10, content_bytes)
    assert not row.has_content


@pytest.fixture
async def acct(stores):
    await stores.operator.publish_contract(
        "acct", {"scope": "stream", "guarantee": "keyed", "gateway": None, "batch_max": 2}, "ann"
    )
    return "acct"


async def test_streams_are_claimed_renewed_shared_and_released(stores, acct):
    store = stores.executor
    ids = {stream: await enqueue(stores, acct, 2, stream=stream) for stream in ("a", "b")}
    claimed = await store.claim_streams(10, "one", 30, 150, [acct], [2])
    assert {(one.lease.target, one.lease.stream) for one in claimed} == {
        ("acct", "a"),
        ("acct", "b"),
    }
    for one in claimed:
        assert (one.state, one.is_held, one.is_begun) == (StreamState.READY, True, False)
        assert [head.intent_id for head in one.heads] == ids[one.lease.stream]
        assert [head.attempt_no for head in one.heads] == [1, 1]
        assert one.heads[0].payload is not None
        assert one.lease.lease.expires_at < one.lease.lease.grace_expires_at
    leases = [one.lease.lease for one in claimed]
    assert {(lease.holder_id, lease.epoch) for lease in leases} == {("one", 1)}
    await store.renew_instance("one", "worker", [acct], {"version": "1"}, 60, [2], [0])
    assert await store.surplus_streams("one") == []
    await store.renew_instance("two", "worker", [acct], {}, 60, [0], [5])
    [surplus] = await store.surplus_streams("one")
    assert (surplus.target, surplus.kept) == (acct, 1)
    [released] = await store.release_streams("one", leases[:1])
    assert released.verdict is ReleaseVerdict.RELEASED
    answers = {
        one.lease_name: one.verdict for one in await store.renew_streams("one", leases, 30, 150)
    }
    assert answers.pop(leases[0].name) is RenewVerdict.LEASE_LOST
    assert list(answers.values()) == [RenewVerdict.RENEWED]
    states = {one.lease.lease.name: one.state for one in await store.refresh_streams("one", leases)}
    assert states == {leases[0].name: StreamState.LEASE_LOST, leases[1].name: StreamState.READY}
    assert await store.release_instance("two")
    assert not await store.release_instance("three")


async def test_results_of_many_streams_are_recorded_at_once_and_bring_the_next_heads(stores, acct):
    store = stores.executor
    ids = {stream: await enqueue(stores, acct, 3, stream=stream) for stream in ("a", "b", "c")}
    claimed = await store.claim_streams(10, "one", 30, 150, [acct], begin=True)
    assert all(one.is_begun for one in claimed)
    leases = {one.lease.stream: one.lease.lease for one in claimed}
    await store.release_streams("one", [leases["c"]], unsent=ids["c"])
    recorded = await store.record_stream_attempts(
        "one",
        list(leases.values()),
        [
            Result(ids["a"][0], Accepted()),
            Result(ids["a"][1], Accepted()),
            Result(ids["b"][0], Retryable(retry_after_seconds=60)),
            Result(ids["c"][0], Accepted()),
        ],
        deferred=[Deferral(ids["b"][1], 0)],
        begin=True,
        tell_dispatched=False,
    )
    answers = {one.intent_id: one for one in recorded.results}
    assert answers[ids["b"][0]].state is AttemptState.RETRYABLE
    assert answers[ids["b"][1]].verdict is RecordVerdict.APPLIED
    assert answers[ids["c"][0]].verdict is RecordVerdict.LEASE_LOST
    assert ids["a"][0] not in answers
    work = {one.lease.stream: one for one in recorded.streams}
    assert [head.intent_id for head in work["a"].heads] == [ids["a"][2]]
    assert work["a"].is_begun
    assert (work["b"].state, work["b"].is_held) == (StreamState.WAITING, False)
    assert work["b"].wait_seconds == pytest.approx(60, abs=5)
    assert work["c"].state is StreamState.LEASE_LOST
    [begun] = await store.begin_stream_attempts("one", [leases["a"]], [ids["a"][2]])
    assert begun.verdict is BeginVerdict.ALREADY_BEGUN


async def test_partitions_are_created_ahead_once(stores):
    await stores.executor.create_ledger_partitions(3)
    made = await stores.executor.create_ledger_partitions(5)
    assert len(made) == 2
    assert all(name.startswith("outbox_attempts_2") for name in made)
    assert await stores.executor.create_ledger_partitions(5) == []


@pytest.mark.parametrize("role", ["ingest", "executor"])
async def test_notification_reaches_the_listener(stores, database, role):
    listener = await psycopg.AsyncConnection.connect(database.url, autocommit=True)
    async with listener:
        await listener.execute("LISTEN leasehold_due")
        await getattr(stores, role).notify_targets(["sms", "payments"])
        heard = [notice.payload async for notice in listener.notifies(timeout=5, stop_after=2)]
    assert sorted(heard) == ["payments", "sms"]
