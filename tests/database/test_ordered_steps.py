"""The stream holder, the runner and the completer on a real database, one claim at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from leasehold.domain.contract import Contract
from leasehold.domain.errors import DatabaseUnavailable, LeaseholdError
from leasehold.domain.lease import Lease, StreamLease
from leasehold.domain.outcome import (
    Accepted,
    NotFound,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)
from leasehold.domain.timing import Timings
from leasehold.executor import completer, lookups
from leasehold.executor.completer import Completer
from leasehold.executor.limits import Gate
from leasehold.executor.runner import Runner
from leasehold.executor.slots import SlotPool, Slots
from leasehold.executor.streams.heartbeat import StreamHeartbeat
from leasehold.executor.streams.held import HeldStreams
from leasehold.executor.streams.holder import StreamHolder
from leasehold.executor.targets import Served
from leasehold.gateway.python.terms import PythonTerms
from leasehold.observe.metrics import Metrics
from tests.support.engine import until

pytestmark = pytest.mark.one_server


class BatchGateway:
    """Takes several at once, and notes what it was asked to do."""

    submissions_max = lookups_max = 100

    def __init__(self):
        self.submitted, self.asked = [], []
        self.answers = {}

    async def submit(self, submission):
        [outcome] = await self.submit_many([submission])
        return outcome

    async def submit_many(self, submissions):
        self.submitted += [one.intent_id for one in submissions]
        return [Accepted() for _ in submissions]

    async def lookup(self, submission):
        [answer] = await self.lookup_many([submission])
        return answer

    async def lookup_many(self, submissions):
        self.asked += [one.intent_id for one in submissions]
        return [self.answers.get(one.intent_id, Accepted()) for one in submissions]


class SingleGateway:
    """Takes one at a time, and counts how many are under way."""

    def __init__(self):
        self.under_way = self.most = 0

    async def submit(self, submission):
        return Submitted(reference=str(submission.intent_id), ask_after_seconds=60)

    async def lookup(self, submission):
        del submission
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        return Accepted()


class SlowGateway:
    """Leaves each call and each lookup open until the test answers it."""

    def __init__(self):
        self.submitted, self.asked = [], []

    async def submit(self, submission):
        del submission
        return await self._open(self.submitted)

    async def lookup(self, submission):
        del submission
        return await self._open(self.asked)

    async def _open(self, answers):
        answer = asyncio.get_running_loop().create_future()
        answers.append(answer)
        return await answer


class Targets:
    def __init__(self, gateway, guarantee, **terms):
        contract = Contract(
            target="pay",
            version=1,
            scope="stream",
            guarantee=guarantee,
            **terms,
            gateway=PythonTerms(function="a:b", lookup="a:c"),
        )
        self.served = Served(contract=contract, gateway=gateway, lease_seconds=30)
        self.refusal = None
        self._gate = Gate(10, None)

    async def of(self, target, version):
        del target, version
        if self.refusal is not None:
            raise self.refusal
        return self.served

    def gate(self, target):
        del target
        return self._gate

    def observe(self, item, outcome, metrics):
        pass

    def report_refused(self, item, error, metrics):
        pass


class Instance:
    def __init__(self, store, gateway, concurrency=10, guarantee="lookup", **terms):
        self.troubles = []
        self.slots = Slots("a", SlotPool(concurrency))
        self.targets = Targets(gateway, guarantee, **terms)
        self.metrics = metrics = Metrics()
        on_error = self.troubles.append
        self.completer = Completer(self.slots, metrics, on_error=on_error)
        self.runner = Runner(self.slots, self.targets, self.completer, metrics, on_error=on_error)
        self.streams = HeldStreams("a")
        self.holder = StreamHolder(
            store, self.slots, self.streams, self.targets, self.runner, metrics, Timings
        )
        self.heartbeat = StreamHeartbeat(
            store,
            self.slots,
            self.streams,
            Timings,
            metrics,
            self.runner,
            SimpleNamespace(is_crowded=lambda _: False),
        )

    async def claim(self, size=10):
        items, _ = await self.holder.claim(size, 30, {"pay": size}, None)
        self.slots.take(items)
        return items

    async def work(self):
        """Claim what is due, and work until nothing is left to do."""
        self.runner.start(await self.claim())
        await self.until_idle()

    async def written(self, results):
        """Wait until so many results are there, and write them."""
        await until(lambda: len(self.completer._finished) == results)
        await asyncio.sleep(completer.LINGER_SECONDS)
        await self.completer.step()

    async def until_idle(self):
        async with asyncio.timeout(30):
            while len(self.slots):
                await asyncio.sleep(0.002)
                await self.completer.step()
        assert self.slots.free == self.slots.total


def put_in_doubt(database, ids):
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET last_state = 'IN_DOUBT',"
        " first_tried_at = clock_timestamp() WHERE intent_id = ANY (%s)",
        [ids],
    )


@pytest.fixture
def gateway():
    return BatchGateway()


async def test_results_of_one_batch_are_written_together(outbox, stores, gateway, monkeypatch):
    monkeypatch.setattr(completer, "BATCH_MAX", 3)
    outbox.publish("pay", scope="stream", guarantee="lookup", batch_max=5)
    ids = outbox.enqueue(7, "pay", stream="s")
    instance = Instance(stores.executor, gateway)
    await instance.work()
    assert gateway.submitted == ids
    assert [outbox.states(one) for one in ids] == [["DISPATCHED"]] * 7


async def test_answers_without_news_do_not_ask_about_the_others_again(
    outbox, stores, gateway, database
):
    outbox.publish("pay", scope="stream", guarantee="lookup", batch_max=5)
    ids = outbox.enqueue(5, "pay", stream="s")
    put_in_doubt(database, ids)
    gateway.answers = {ids[1]: Unknown(), ids[3]: Unknown(retry_after_seconds=200)}
    instance = Instance(stores.executor, gateway)
    await instance.work()
    assert gateway.asked == ids
    ended = [outbox.states(one)[-1:] == ["DISPATCHED"] for one in ids]
    assert ended == [True, False, True, False, True]
    assert len(instance.streams) == 0


@pytest.mark.parametrize("error", [LeaseholdError, DatabaseUnavailable, OSError])
async def test_batch_whose_contract_cannot_be_opened_is_given_back_as_a_whole(
    outbox, stores, gateway, database, error
):
    outbox.publish("pay", scope="stream", guarantee="lookup", batch_max=5)
    ids = outbox.enqueue(3, "pay", stream="s")
    instance = Instance(stores.executor, gateway)
    instance.targets.refusal = error("not now")
    await instance.work()
    [lease] = database.execute("SELECT expires_at = '-infinity' AS is_free FROM leasehold.leases")
    assert lease["is_free"]
    assert [outbox.pending(one)["begun_at"] for one in ids] == [None] * 3


async def test_batch_that_came_too_late_to_be_begun_is_sent_once(outbox, stores, gateway, database):
    outbox.publish("pay", scope="stream", guarantee="lookup", batch_max=5)
    ids = outbox.enqueue(3, "pay", stream="s")
    instance = Instance(stores.executor, gateway)
    store = stores.executor
    [claimed] = await store.claim_streams(10, "a", 30, 150, ["pay"])
    leases = [claimed.lease.lease]
    database.execute("UPDATE leasehold.leases SET expires_at = clock_timestamp() - interval '1s'")
    work = await store.refresh_streams("a", leases, begin=True)
    assert not work[0].is_begun
    await store.renew_streams("a", leases, 30, 150)
    instance.streams.hold(claimed.lease, instance.slots.clock(), 30, 150)
    heads = instance.holder.learn(work, instance.slots.clock())
    instance.slots.take(heads)
    instance.holder.start(heads)
    await instance.until_idle()
    assert Counter(gateway.submitted) == Counter(ids)
    assert [outbox.states(one) for one in ids] == [["DISPATCHED"]] * 3


async def test_gateway_that_takes_one_lookup_is_asked_about_one_after_the_other(
    outbox, stores, database
):
    outbox.publish("pay", scope="stream", guarantee="lookup", pipeline_max=50)
    ids = outbox.enqueue(30, "pay", stream="s")
    single = SingleGateway()
    instance = Instance(stores.executor, single, concurrency=5)
    await instance.work()
    database.execute("UPDATE leasehold.outbox_pending SET due_at = clock_timestamp()")
    await instance.work()
    assert single.most == 1
    assert [outbox.states(one)[-1] for one in ids] == ["DISPATCHED"] * 30


async def test_questions_about_many_intents_of_a_stream_take_one_slot(
    outbox, stores, gateway, database
):
    outbox.publish("pay", scope="stream", guarantee="lookup", batch_max=50)
    ids = outbox.enqueue(30, "pay", stream="s")
    put_in_doubt(database, ids)
    instance = Instance(stores.executor, gateway, concurrency=5)
    instance.runner.start(await instance.claim())
    assert instance.slots.free == 4
    await instance.until_idle()
    assert gateway.asked == ids


async def test_stream_is_freed_after_its_call_if_its_target_takes_no_more(
    outbox, stores, gateway, database
):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    ids = outbox.enqueue(3, "pay", stream="s")
    instance = Instance(stores.executor, gateway)
    items = await instance.claim()
    instance.targets.gate("pay").breaker.observe(Retryable(is_saturated=True))
    instance.runner.start(items)
    await instance.until_idle()
    assert gateway.submitted == ids[:1]
    [lease] = database.execute("SELECT expires_at = '-infinity' AS is_free FROM leasehold.leases")
    assert lease["is_free"]
    assert [outbox.pending(one)["begun_at"] for one in ids[1:]] == [None] * 2


@pytest.mark.parametrize("claimed_meanwhile", [0, 4])
async def test_streams_that_all_get_their_heads_at_once_take_no_more_than_the_room_of_their_target(
    outbox, stores, database, claimed_meanwhile
):
    """While their enqueuer was open, they were held without a slot. Others go on with the rest."""
    outbox.publish("pay", scope="stream", guarantee="keyed")
    for number in range(15):
        outbox.enqueue(1, "pay", stream=f"s{number}")
    gateway = SlowGateway()
    instance = Instance(stores.executor, gateway, concurrency=30, guarantee="keyed")
    instance.runner.start(await instance.claim(15))
    with database.connect("ingest", autocommit=False) as enqueuer:
        enqueuer.execute(
            "SELECT leasehold.enqueue_intent('pay', '1', p_options => json_build_object('stream',"
            " 's' || number)::jsonb) FROM generate_series(0, 14) AS number"
        )
        await until(lambda: len(gateway.submitted) == 15)
        for call in gateway.submitted:
            call.set_result(Accepted())
        await instance.until_idle()
        assert len(instance.streams) == 15
    for one in instance.streams.all():
        one.recheck_at = 0.0
    with instance.slots.reserved(claimed_meanwhile, {"pay": claimed_meanwhile}):
        await instance.holder.step()
    room = 10 - claimed_meanwhile  # see Targets
    assert instance.slots.in_flight("pay") == len(instance.streams) == room
    rest = await stores.executor.claim_streams(30, "b", 30, 150, ["pay"], None, None)
    assert len([one for one in rest if one.heads]) == 15 - room


@pytest.mark.parametrize("is_refused", [False, True])
async def test_batches_of_more_items_than_one_call_may_name_are_given_back(
    outbox, stores, gateway, database, is_refused
):
    """At a shutdown, or because their contract cannot be opened."""
    outbox.publish("pay", scope="stream", guarantee="lookup", batch_max=100)
    for number in range(101):
        outbox.enqueue(100, "pay", stream=f"s{number}")
    instance = Instance(stores.executor, gateway, concurrency=20_000)
    items = await instance.claim(200)
    if is_refused:
        instance.targets.refusal = LeaseholdError("not here")
    else:
        instance.runner.close()
    instance.runner.start(items)
    await instance.until_idle()
    assert database.execute(
        "SELECT count(*) FILTER (WHERE begun_at IS NOT NULL) AS begun, count(*) AS waiting"
        "  FROM leasehold.outbox_pending"
    ) == [{"begun": 0, "waiting": 10_100}]


async def test_more_streams_than_one_call_may_name_are_renewed_and_released(
    stores, gateway, database
):
    """Streams that must be looked at again need no slot, so there may be any number of them."""
    rows = database.owner_execute(
        "INSERT INTO leasehold.leases (lease_name, holder_id, lease_epoch, acquired_at, renewed_at,"
        "   expires_at, grace_expires_at, target, stream)"
        " SELECT 'stream/pay/' || n, 'a', 1, now(), now(), now() + interval '30 s',"
        "        now() + interval '180 s', 'pay', n::text FROM generate_series(1, 10001) AS n"
        " RETURNING lease_name AS name, holder_id, lease_epoch AS epoch, expires_at,"
        "           grace_expires_at"
    )
    instance = Instance(stores.executor, gateway)
    now = instance.slots.clock()
    for row in rows:
        stream = row["name"].removeprefix("stream/pay/")
        lease = StreamLease(target="pay", stream=stream, lease=Lease(**row))
        instance.streams.hold(lease, now, 30, 150).recheck_at = now
    await instance.heartbeat.step()
    assert len(instance.streams) == 10_001
    await instance.holder.leave()
    assert database.execute(
        "SELECT count(*) AS streams FROM leasehold.leases WHERE renewed_at > acquired_at"
        "   AND expires_at <= clock_timestamp()"
    ) == [{"streams": 10_001}]


async def test_answer_asked_for_before_we_took_our_own_stream_over_is_not_used(
    outbox, stores, database
):
    """It would be recorded for the call that follows the second answer, and send once more."""
    outbox.publish("pay", scope="stream", guarantee="lookup")
    [intent_id] = outbox.enqueue(1, "pay", stream="s")
    put_in_doubt(database, [intent_id])
    gateway = SlowGateway()
    instance = Instance(stores.executor, gateway)
    instance.runner.start(await instance.claim())
    await until(lambda: gateway.asked)
    outbox.expire_lease("stream/pay/s", grace=False)
    instance.runner.start(await instance.claim())
    await until(lambda: gateway.asked[1:])
    for answer in gateway.asked:
        if not answer.done():
            answer.set_result(NotFound())
            await instance.written(1)
    await until(lambda: gateway.submitted)
    [call] = gateway.submitted
    call.set_result(Accepted())
    await instance.until_idle()
    assert outbox.states(intent_id) == ["RETRYABLE", "DISPATCHED"]


class SlowLookups(BatchGateway):
    """Accepts everything for a later confirmation. Its answers wait for the test."""

    def __init__(self):
        super().__init__()
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def submit_many(self, submissions):
        self.submitted += [one.intent_id for one in submissions]
        reference = f"submission {len(self.submitted)}"
        return [Submitted(reference=reference, ask_after_seconds=60) for _ in submissions]

    async def lookup_many(self, submissions):
        self.is_asked.set()
        await self.may_answer.wait()
        return await super().lookup_many(submissions)


@pytest.mark.parametrize("answer", [Accepted(), Rejected(), NotFound(), Unknown()])
async def test_answer_about_a_submission_that_an_operator_has_resolved_is_dropped(
    outbox, stores, answer
):
    """The answer was recorded as the outcome of the submission that the operator had asked for."""
    outbox.publish("pay", scope="stream", guarantee="lookup", pipeline_max=3)
    first, second = outbox.enqueue(2, "pay", stream="s")
    gateway = SlowLookups()
    gateway.answers = {second: answer}
    instance = Instance(stores.executor, gateway)
    await instance.work()
    outbox.make_due()
    instance.runner.start(await instance.claim())
    async with asyncio.timeout(20):
        await gateway.is_asked.wait()
    verdict = await stores.operator.resolve_intent(second, "RETRYABLE", "ann", "it was lost")
    assert verdict == "resolved"
    gateway.may_answer.set()
    await instance.until_idle()

    assert gateway.submitted == [first, second, second]
    assert outbox.states(first) == ["SUBMITTED", "DISPATCHED"]
    ledger = [(row["state"], row["reference"]) for row in outbox.ledger(second)]
    assert ledger == [
        ("SUBMITTED", "submission 2"),
        ("RETRYABLE", "submission 2"),
        ("SUBMITTED", "submission 3"),
    ]
    assert instance.troubles == []


async def test_stream_whose_head_may_not_begin_any_more_is_freed_at_once(outbox, stores, database):
    """An operator paused it after the claim. Whoever resumes it must not wait for its expiry."""
    outbox.publish("pay", scope="stream", guarantee="keyed")
    [intent_id] = outbox.enqueue(1, "pay", stream="s")
    put_in_doubt(database, [intent_id])
    gateway = BatchGateway()
    instance = Instance(stores.executor, gateway, guarantee="keyed")
    items = await instance.claim()
    outbox.call("operator", "pause_stream", "pay", "s", "ann", "audit")
    outbox.as_role("operator").commit()
    instance.runner.start(items)
    await instance.until_idle()
    assert gateway.submitted == []
    [lease] = database.execute("SELECT expires_at = '-infinity' AS is_free FROM leasehold.leases")
    assert lease["is_free"]


KEYED = {"guarantee": "keyed", "key_window_seconds": 3600, "quarantine_seconds": 600}


async def test_keyed_intent_is_not_asked_about_before_its_quarantine_ends(
    outbox, stores, gateway, database
):
    """Asked too early, the gateway does not know what is still on its way, and it is sent again."""
    outbox.publish("pay", scope="stream", can_look_up=True, batch_max=5, **KEYED)
    old, young = outbox.enqueue(2, "pay", stream="s")
    put_in_doubt(database, [old, young])
    # The key window of both is over; only the first has waited out its quarantine.
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET first_tried_at = clock_timestamp()"
        " - CASE intent_id WHEN %s THEN interval '2 hours' ELSE interval '61 minutes' END",
        [old],
    )
    instance = Instance(stores.executor, gateway, **KEYED)
    await instance.work()
    assert (gateway.asked, gateway.submitted) == ([old], [])
    assert outbox.states(old) == ["DISPATCHED"]
    [row] = outbox.ledger(young)
    assert (row["state"], row["reason"]) == ("IN_DOUBT", "key_window_over")


async def test_every_intent_in_doubt_is_begun_before_it_is_sent_again(
    outbox, stores, gateway, database, monkeypatch
):
    """Of a batch in doubt only the first was begun, so an operator could resolve the others."""
    outbox.publish("pay", scope="stream", guarantee="fenced", batch_max=5)
    ids = outbox.enqueue(3, "pay", stream="s")
    put_in_doubt(database, ids)
    begun = []

    async def submit_many(submissions):
        begun.extend(outbox.pending(one.intent_id)["begun_at"] for one in submissions)
        return await BatchGateway.submit_many(gateway, submissions)

    monkeypatch.setattr(gateway, "submit_many", submit_many)
    instance = Instance(stores.executor, gateway, guarantee="fenced")
    await instance.work()
    assert gateway.submitted == ids
    assert None not in begun


async def test_stream_that_shared_the_slot_of_another_is_freed_after_its_answer(
    outbox, stores, database, monkeypatch
):
    """Its next head would be called in a slot that it does not have."""
    monkeypatch.setattr(lookups, "CROWDED_GATHER_SECONDS", 0.5)
    monkeypatch.setattr(lookups, "CROWDED_GATHER_SECONDS_MAX", 1.0)
    outbox.publish("pay", scope="stream", guarantee="lookup")
    heads = [outbox.enqueue(2, "pay", stream=f"s{number}")[0] for number in range(4)]
    put_in_doubt(database, heads)
    gateway = SlowLookups()
    instance = Instance(stores.executor, gateway, concurrency=2)
    for _ in range(3):
        await until(lambda: instance.slots.free)
        instance.runner.start(await instance.claim(instance.slots.free))
    async with asyncio.timeout(20):
        await gateway.is_asked.wait()
    assert len(instance.slots) == 4
    gateway.may_answer.set()
    await until(lambda: len(gateway.asked) == 4)
    await instance.written(4)
    assert len(instance.slots) == 1
    await instance.until_idle()
    assert instance.troubles == []
    assert len(instance.streams) == 0
    await instance.work()
    assert len(gateway.submitted) == 4


async def test_stream_that_is_lost_while_a_result_is_written_is_not_trusted_anew(
    outbox, stores, gateway
):
    """Its lease was not extended, and may end at any moment."""
    outbox.publish("pay", scope="stream", guarantee="lookup")
    ids = outbox.enqueue(2, "pay", stream="s")
    instance = Instance(stores.executor, gateway)
    record = stores.executor.record_stream_attempts

    async def lose_meanwhile(*arguments, **more):
        recorded = await record(*arguments, **more)
        [held] = instance.streams.all()
        held.trust(instance.slots.clock() - 300, 30, 150)
        await instance.heartbeat.step()
        return recorded

    stores.executor.record_stream_attempts = lose_meanwhile
    try:
        await instance.work()
    finally:
        del stores.executor.record_stream_attempts
    assert gateway.submitted == ids[:1]
    assert len(instance.streams) == 0


@pytest.mark.parametrize("is_refused", [False, True])
async def test_heads_are_given_back_although_the_database_is_away_for_a_moment(
    outbox, stores, gateway, database, is_refused
):
    """Otherwise they would be in doubt after the second expiry, although nothing was sent."""
    outbox.publish("pay", scope="stream", guarantee="lookup", batch_max=5)
    ids = outbox.enqueue(3, "pay", stream="s")
    instance = Instance(stores.executor, gateway)
    items = await instance.claim()
    if is_refused:
        instance.targets.refusal = LeaseholdError("not here")
    else:
        instance.runner.close()
    name = "record_stream_attempts" if is_refused else "release_streams"
    write = getattr(stores.executor, name)

    async def fail(*_, **__):
        setattr(stores.executor, name, write)
        raise DatabaseUnavailable("a moment")

    setattr(stores.executor, name, fail)
    instance.runner.start(items)
    with pytest.raises(DatabaseUnavailable):
        await instance.until_idle()
    assert len(instance.slots) == 3
    await instance.until_idle()
    assert [outbox.pending(one)["begun_at"] for one in ids] == [None] * 3
    [lease] = database.execute("SELECT expires_at = '-infinity' AS is_free FROM leasehold.leases")
    assert lease["is_free"]
