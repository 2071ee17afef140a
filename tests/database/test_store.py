"""Each method of the store, with the role that needs it, on the real functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest

from leasehold.domain.errors import (
    IdempotencyConflict,
    InvalidArgument,
    LeaseLost,
    RetryCeilingReached,
)
from leasehold.domain.intent import AttemptState, IntentId, NewIntent, Status
from leasehold.domain.lease import Lease, StreamState
from leasehold.domain.outcome import (
    Accepted,
    Deferral,
    Rejected,
    Result,
    Retryable,
    Submitted,
    Unknown,
)
from leasehold.domain.verdict import (
    BeginVerdict,
    CancelVerdict,
    EnqueueVerdict,
    RecordVerdict,
    RedriveVerdict,
    ReleaseVerdict,
    RenewVerdict,
    ResolveVerdict,
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


async def test_verdict_comes_per_intent_in_the_order_given(stores, sms):
    first = NewIntent(target=sms, payload={"a": 1, "b": 2}, idempotency_key="k")
    answers = await stores.ingest.enqueue_intents(
        [
            first,
            NewIntent(target=sms, payload={"b": 2, "a": 1}, idempotency_key="k"),
            NewIntent(target=sms, payload={"a": 2}, idempotency_key="k"),
            NewIntent(target="nobody", payload=1),
            NewIntent(target=sms, payload="x" * 1048576),
            NewIntent(target=sms, payload=1, priority=9),
        ]
    )
    assert [answer.ordinal for answer in answers] == [1, 2, 3, 4, 5, 6]
    assert [answer.verdict for answer in answers] == list(EnqueueVerdict)
    assert answers[0].intent_id == answers[1].intent_id == answers[2].intent_id
    assert [answer.intent_id for answer in answers[3:]] == [None] * 3
    assert "priority" in answers[5].problem


async def test_single_enqueue_raises_instead_of_returning_a_verdict(stores, sms):
    one = NewIntent(target=sms, payload=[1], idempotency_key="k", metadata={"source": "test"})
    intent_id = await stores.ingest.enqueue_intent(one)
    assert await stores.ingest.enqueue_intent(one) == intent_id
    with pytest.raises(IdempotencyConflict) as raised:
        await stores.ingest.enqueue_intent(NewIntent(target=sms, payload=[2], idempotency_key="k"))
    assert raised.value.intent_id == intent_id
    with pytest.raises(InvalidArgument, match="exactly one of payload and body"):
        await stores.ingest.enqueue_intent(NewIntent(target=sms))


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


async def test_claim_respects_the_limits_of_its_targets(stores, sms, payments):
    await enqueue(stores, sms, 3)
    await enqueue(stores, payments, 3)
    claimed = await stores.executor.claim_outbox_batch(10, "w", 30, [sms, payments], [1, 2])
    assert sorted(one.target for one in claimed) == ["payments", "payments", "sms"]


@pytest.mark.parametrize(
    ("outcome", "state", "status"),
    [
        (Accepted(reference="r", code="200"), AttemptState.DISPATCHED, Status.ACCEPTED),
        (Rejected(reason="no", code="422"), AttemptState.FAILED, Status.REJECTED),
        (Retryable(retry_after_seconds=5), AttemptState.RETRYABLE, Status.PENDING),
        (Unknown(retry_after_seconds=0, detail="lost"), AttemptState.IN_DOUBT, Status.IN_DOUBT),
        (Submitted(reference="s", ask_after_seconds=5), AttemptState.SUBMITTED, Status.CONFIRMING),
    ],
)
async def test_outcome_is_on_the_ledger_with_its_state(stores, sms, outcome, state, status):
    [intent_id] = await enqueue(stores, sms)
    claimed = await claim(stores, sms)
    [recorded] = await stores.executor.complete_outbox_attempts("w", results(claimed, outcome))
    assert (recorded.verdict, recorded.state) == (RecordVerdict.APPLIED, state)
    assert (recorded.due_at is None) is state.is_terminal
    [attempt] = await stores.readonly.read_ledger([intent_id])
    assert (attempt.attempt_no, attempt.state, attempt.holder) == (1, state, "w")
    told = {"reason", "reference", "code", "detail"} & set(type(outcome).__slots__)
    assert all(getattr(attempt, name) == getattr(outcome, name) for name in told)
    [seen] = await stores.readonly.read_status([intent_id])
    assert (seen.status, seen.status.is_final) == (status, state.is_terminal)


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


async def test_doubt_about_a_blind_gateway_is_held_without_a_due_time(stores):
    await stores.operator.publish_contract(
        "fax", {"scope": "item", "guarantee": "blind", "gateway": None}, "ann"
    )
    [intent_id] = await enqueue(stores, "fax")
    claimed = await claim(stores, "fax")
    [begun] = await stores.executor.begin_outbox_attempts("w", [c.claim for c in claimed])
    assert begun.verdict is BeginVerdict.BEGUN
    [recorded] = await stores.executor.complete_outbox_attempts(
        "w", results(claimed, Unknown(retry_after_seconds=0))
    )
    assert (recorded.is_held, recorded.due_at) == (True, None)
    [seen] = await stores.readonly.read_status([intent_id])
    assert (seen.status, seen.due_at) == (Status.HELD, None)


async def test_late_result_is_stale_finished_or_unknown(stores, outbox, sms):
    await enqueue(stores, sms, 2)
    stale, finished = claimed = await claim(stores, sms)
    await stores.executor.complete_outbox_attempt("w", finished.claim, Accepted())
    outbox.expire_claims()
    unknown = Result(intent_id=IntentId(uuid4()), lease_token=stale.lease_token, outcome=Accepted())
    answers = await stores.executor.complete_outbox_attempts(
        "w", [*results(claimed, Accepted()), unknown]
    )
    assert {answer.intent_id: answer.verdict for answer in answers} == {
        stale.intent_id: RecordVerdict.LEASE_LOST,
        finished.intent_id: RecordVerdict.ALREADY_TERMINAL,
        unknown.intent_id: RecordVerdict.NOT_FOUND,
    }
    for claim_, verdict in ((stale.claim, "lease_lost"), (finished.claim, "already_terminal")):
        with pytest.raises(LeaseLost) as raised:
            await stores.executor.complete_outbox_attempt("w", claim_, Accepted())
        assert (raised.value.verdict, raised.value.lease_name) == (verdict, None)


async def test_heartbeat_says_which_claims_are_lost(stores, sms):
    await enqueue(stores, sms, 2)
    kept, given_back = await claim(stores, sms)
    [released] = await stores.executor.release_outbox_claims("w", [given_back.claim], 0)
    assert released.verdict is ReleaseVerdict.RELEASED
    answers = await stores.executor.renew_outbox_leases("w", [kept.claim, given_back.claim], 60)
    renewed = {answer.intent_id: answer for answer in answers}
    assert renewed[kept.intent_id].verdict is RenewVerdict.RENEWED
    assert renewed[kept.intent_id].lease_expires_at > kept.claimed_at + timedelta(seconds=59)
    assert renewed[given_back.intent_id].verdict is RenewVerdict.LEASE_LOST
    assert renewed[given_back.intent_id].lease_expires_at is None


async def test_empty_renewal_begin_or_completion_is_not_an_error(stores):
    assert await stores.executor.renew_outbox_leases("w", [], 60) == []
    assert await stores.executor.begin_outbox_attempts("w", []) == []
    assert await stores.executor.complete_outbox_attempts("w", []) == []
    assert await stores.executor.release_outbox_claims("w", [], 0) == []


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


async def test_missed_deadline_is_finished_by_repair(stores, database, sms):
    [intent_id] = await enqueue(stores, sms, deadline_seconds=3600, delay_seconds=60)
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp() - interval '1 second'"
    )
    [missed] = await stores.executor.repair_missed_deadlines(10, "r")
    assert (missed.intent_id, missed.attempt_no) == (intent_id, 1)
    [seen] = await stores.readonly.read_status([intent_id])
    assert (seen.status, seen.reason) == (Status.EXHAUSTED, "deadline_exceeded")


async def test_lease_is_acquired_renewed_released_and_acquired_again(stores):
    store = stores.executor
    first = await store.acquire_lease("leader", "a", 30, 60)
    assert first.is_ours
    assert (first.lease.name, first.lease.holder_id, first.lease.epoch) == ("leader", "a", 1)
    assert first.lease.grace_expires_at - first.lease.expires_at >= timedelta(seconds=59)
    second = await store.acquire_lease("leader", "b", 30)
    assert (second.is_ours, second.lease.holder_id, second.lease.epoch) == (False, "a", 1)
    assert await store.renew_lease(first.lease, 60, 60) > first.lease.expires_at
    await store.record_leader_heartbeat(first.lease, {"slots": 3})
    assert await store.release_lease(first.lease)
    assert not await store.release_lease(first.lease)
    third = await store.acquire_lease("leader", "b", 30)
    assert (third.is_ours, third.lease.epoch) == (True, 2)


async def test_every_fenced_call_of_a_replaced_holder_raises(stores, outbox):
    store = stores.executor
    old = (await store.acquire_lease("leader", "a", 30)).lease
    outbox.expire_lease("leader")
    assert (await store.acquire_lease("leader", "b", 30)).is_ours
    for call in (
        store.renew_lease(old, 30),
        store.record_leader_heartbeat(old, {}),
        store.begin_leased_attempts(old, [IntentId(uuid4())]),
        store.record_attempts(old, []),
        store.refresh_due_rows("a", [old], ["bank"], 10),
        store.mark_calls(old, [], 1),
        store.unmark_calls(old, []),
        store.refresh_schedule("a", [old], None, 10),
    ):
        with pytest.raises(LeaseLost) as raised:
            await call
        assert raised.value.lease_name == "leader"


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


async def test_window_continues_from_where_it_ended(stores):
    store = stores.executor
    for target in ("bank", "post"):
        terms = {"scope": "cluster", "guarantee": "keyed", "gateway": None, "lease_name": "leader"}
        await stores.operator.publish_contract(target, terms, "ann")
        for priority in (0, 2, 2, 2):
            await stores.ingest.enqueue_intent(
                NewIntent(target=target, payload=1, priority=priority)
            )
    lease = (await store.acquire_lease("leader", "a", 30)).lease
    targets = ["bank", "post"]
    whole = await store.refresh_due_rows("a", [lease], targets, 10)
    bank = [row for row in whole if (row.target, row.priority) == ("bank", 2)]
    after = {"bank": {2: (bank[0].due_at, bank[0].intent_id)}}
    found = await store.refresh_due_rows("a", [lease], targets, 10, 0, after)
    assert [row.intent_id for row in found] == [row.intent_id for row in bank[1:]]


async def test_held_row_is_a_change_without_a_due_time_and_not_in_the_window(stores):
    store = stores.executor
    terms = {"scope": "cluster", "guarantee": "blind", "gateway": None, "lease_name": "leader"}
    await stores.operator.publish_contract("fax", terms, "ann")
    ids = await enqueue(stores, "fax")
    lease = (await store.acquire_lease("leader", "a", 30)).lease
    await store.begin_leased_attempts(lease, ids)
    [recorded] = await store.record_attempts(
        lease, [Result(intent_id=ids[0], outcome=Unknown(retry_after_seconds=0))]
    )
    assert (recorded.is_held, recorded.state) == (True, AttemptState.IN_DOUBT)
    [row] = await store.refresh_schedule("a", [lease], None, 10)
    assert (row.intent_id, row.due_at) == (ids[0], None)
    assert await store.refresh_due_rows("a", [lease], ["fax"], 10) == []


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


async def test_operator_cancels_resolves_and_redrives(stores, sms):
    operator = stores.operator
    waiting, doubtful = await enqueue(stores, sms, 2)
    assert await operator.cancel_intent(waiting, "ann", "why") is CancelVerdict.CANCELLED
    assert await operator.cancel_intent(waiting, "ann", "why") is CancelVerdict.ALREADY_TERMINAL
    claimed = await claim(stores, sms)
    assert await operator.cancel_intent(doubtful, "ann", "why") is CancelVerdict.IN_FLIGHT
    await stores.executor.complete_outbox_attempts(
        "w", results(claimed, Unknown(retry_after_seconds=0))
    )
    resolved = await operator.resolve_intent(doubtful, AttemptState.FAILED, "ann", "called them")
    assert resolved is ResolveVerdict.RESOLVED
    [redriven] = await operator.redrive_intents([doubtful], "ann", "again")
    assert redriven.verdict is RedriveVerdict.REDRIVEN
    [seen] = await stores.readonly.read_status([redriven.new_intent_id])
    assert seen.redrive_of == doubtful
    [again] = await operator.redrive_intents([doubtful], "ann", "again")
    assert (again.verdict, again.new_intent_id) == (
        RedriveVerdict.ALREADY_REDRIVEN,
        redriven.new_intent_id,
    )


async def test_contract_gets_a_version_and_keeps_it_while_unchanged(stores):
    terms = {"scope": "item", "guarantee": "keyed", "gateway": None}
    assert await stores.operator.publish_contract("sms", terms, "ann") == 1
    assert await stores.operator.publish_contract("sms", terms, "ben") == 1
    assert await stores.operator.publish_contract("sms", terms | {"attempts_max": 3}, "ann") == 2
    with pytest.raises(RetryCeilingReached):
        await stores.operator.publish_contract("sms", terms | {"attempts_max": 21}, "ann")


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


async def test_unknown_intent_has_no_ledger_and_no_status(stores):
    assert await stores.readonly.read_ledger([IntentId(uuid4())]) == []
    assert await stores.readonly.read_status([]) == []


async def test_lease_that_nobody_ever_held_is_lost_too(stores):
    made_up = Lease(
        name="x", holder_id="a", epoch=3, expires_at=LONG_AGO, grace_expires_at=LONG_AGO
    )
    with pytest.raises(LeaseLost):
        await stores.executor.renew_lease(made_up, 30)
    assert not await stores.executor.release_lease(made_up)
