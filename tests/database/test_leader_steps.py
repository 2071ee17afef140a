"""The reader and the dispatcher of a leader on a real database, one step at a time.

The runner makes no calls: each test decides the result of a call.
"""

from __future__ import annotations

import asyncio
import math

import pytest

from leasehold.coordination.term import Term
from leasehold.domain.contract import Contract
from leasehold.domain.errors import LeaseLost
from leasehold.domain.intent import NewIntent
from leasehold.domain.lease import TrustWindow
from leasehold.domain.outcome import Accepted, NotFound, Rejected, Retryable, Submitted, Unknown
from leasehold.domain.timing import Timings
from leasehold.executor.claim_size import CallTimes
from leasehold.executor.completer import Completer
from leasehold.executor.fences import LeaseFence
from leasehold.executor.item import ItemState
from leasehold.executor.leader.dispatcher import Dispatcher
from leasehold.executor.leader.due_queue import DueQueue
from leasehold.executor.leader.reader import Reader
from leasehold.executor.limits import Gate
from leasehold.executor.runner import Runner
from leasehold.executor.slots import SlotPool, Slots
from leasehold.executor.targets import Served
from leasehold.gateway.python.terms import PythonTerms
from leasehold.observe.metrics import Metrics
from leasehold.store.postgres import changes
from leasehold.store.postgres.changes import PostgresChanges
from tests.support.database import LONG_AGO
from tests.support.outbox import ZERO_ID

pytestmark = pytest.mark.one_server

END_BY_HAND = (
    "INSERT INTO leasehold.outbox_attempts"
    " (intent_id, attempt_no, state, holder, started_at, finished_at)"
    " VALUES (%s, 1, 'DISPATCHED', 'by hand', now(), now())"
)
ENQUEUE = """SELECT * FROM leasehold.enqueue_intents('[{"target": "bank", "payload": 1}]')"""
LARGE = "".join(map(str, range(500)))  # too large to be sent with the window


class PausingStore:
    """The real store, but it waits before or after one call until the test continues it."""

    def __init__(self, store):
        self._store = store
        self._name, self._when = None, None
        self.is_waiting, self.may_go = asyncio.Event(), asyncio.Event()

    def pause(self, when, name):
        self._name, self._when = name, when
        self.is_waiting, self.may_go = asyncio.Event(), asyncio.Event()

    def changes(self, lease):
        return PostgresChanges(self, lease)

    def __getattr__(self, name):
        call = getattr(self._store, name)
        if name != self._name:
            return call

        async def paused(*arguments):
            answer = await call(*arguments) if self._when == "after" else None
            self.is_waiting.set()
            await self.may_go.wait()
            return await call(*arguments) if self._when == "before" else answer

        return paused


class Groups:
    """Targets that take ten calls at a time each."""

    def __init__(self, targets):
        self._gates = {target: Gate(10, None) for target in targets}

    def of_group(self, _lease_name):
        return list(self._gates)

    def gate(self, target):
        return self._gates[target]


class IdleRunner:
    times = CallTimes(Metrics())

    def __init__(self):
        self.started = []

    def start(self, items):
        self.started += items


class Leader:
    def __init__(self, store, lease, *targets):
        self.store = PausingStore(store)
        self.term = Term(lease, TrustWindow(math.inf))
        self.slots = Slots("a", SlotPool(10))
        self.troubles = []
        self.runner = IdleRunner()
        self.queue = DueQueue(1000, LeaseFence(self.store, lease), self.term)
        parts = self.store, self.term, self.queue, self.slots, Groups(targets)
        on_error = self.troubles.append
        self.completer = Completer(self.slots, Metrics(), on_error=on_error)
        self.reader = Reader(*parts, Metrics(), Timings, on_error=on_error)
        self.dispatcher = Dispatcher(*parts, self.runner, Metrics(), Timings, on_error=on_error)

    async def build(self):
        await self.reader.build()
        self.dispatcher.open()

    async def reconcile(self):
        self.reader._reconcile_at = 0.0
        await self.reader.step()

    async def finish(self, item, outcome=None):
        item.call()
        self.completer.complete(item, outcome or Accepted(), 0.001)
        self.completer._first_at = 0.0  # do not wait for others
        await self.completer.step()

    async def give_back(self, item, delay_seconds=0.0):
        self.completer.give_back(item, delay_seconds)
        await self.completer.step()

    async def paused(self, service, when, name):
        """Start a step of a service, and return when it waits in this call of the store."""
        self.store.pause(when, name)
        step = asyncio.create_task(service.step())
        async with asyncio.timeout(10):
            await self.store.is_waiting.wait()
        return step


@pytest.fixture
async def leader(stores):
    """A leader with one intent to call."""
    await publish(stores, "bank")
    await stores.ingest.enqueue_intent(NewIntent(target="bank", payload=1))
    return await leader_of(stores, "bank")


async def publish(stores, *targets):
    for target in targets:
        terms = {"scope": "cluster", "guarantee": "keyed", "gateway": None, "lease_name": "leader"}
        await stores.operator.publish_contract(target, terms, "ann")


async def leader_of(stores, *targets):
    lease = (await stores.executor.acquire_lease("leader", "a", 30)).lease
    leader = Leader(stores.executor, lease, *targets)
    await leader.build()
    return leader


def marked(outbox):
    rows = outbox.database.execute("SELECT unnest(intent_ids) AS one FROM leasehold.call_marks")
    return [row["one"] for row in rows]


def pending(outbox):
    rows = outbox.database.execute("SELECT intent_id FROM leasehold.outbox_pending")
    return {row["intent_id"] for row in rows}


def ids(items):
    return [item.claimed.intent_id for item in items]


async def test_call_given_back_and_started_again_while_marks_are_removed_keeps_its_mark(
    leader, outbox
):
    """The call lost its mark, and the next window started it a second time."""
    await leader.dispatcher.step()
    [first] = leader.runner.started
    # Something else has a stale mark. While it is removed, a late renewal gives this call back.
    leader.dispatcher._marks_stale = True
    step = await leader.paused(leader.dispatcher, "before", "unmark_calls")
    await leader.give_back(first)
    leader.store.may_go.set()
    await step
    for _ in range(3):
        await leader.reconcile()
        await leader.dispatcher.step()
    assert ids(leader.runner.started) == [first.claimed.intent_id] * 2
    assert marked(outbox) == [first.claimed.intent_id]
    assert (len(leader.slots), leader.troubles) == (1, [])


async def test_call_that_was_being_marked_when_the_leader_left_is_not_in_doubt(leader, outbox):
    step = await leader.paused(leader.dispatcher, "before", "mark_calls")
    leader.term.close("a shutdown")
    leaving = asyncio.create_task(leader.dispatcher.leave())
    await asyncio.sleep(0.05)
    leader.store.may_go.set()
    await asyncio.gather(leaving, step)
    assert (marked(outbox), leader.runner.started, leader.troubles) == ([], [], [])


async def test_given_back_call_is_unmarked_when_the_leader_leaves(leader, outbox):
    await leader.dispatcher.step()
    [item] = leader.runner.started
    leader.completer.give_back(item, 0.0)
    await leader.dispatcher.leave()
    assert (marked(outbox), len(leader.slots)) == ([], 1)


async def test_call_whose_result_could_not_be_written_stays_marked_and_in_doubt(
    leader, outbox, stores, database
):
    await leader.dispatcher.step()
    [item] = leader.runner.started
    intent_id = item.claimed.intent_id
    blocker = database.session("owner")
    blocker.run("BEGIN")
    blocker.run("SELECT FROM leasehold.outbox_pending FOR UPDATE")
    await leader.finish(item)  # lock_timeout
    assert leader.slots.all() == [item], "it is repeated"
    leader.term.end("a test")
    pause = await leader.completer.repeater.step()
    await asyncio.sleep(pause.seconds + 0.01)
    await leader.completer.repeater.step()
    assert leader.slots.all() == []
    blocker.run("ROLLBACK")
    assert [type(one) for one in leader.troubles] == [LeaseLost]
    await leader.dispatcher.leave()
    assert marked(outbox) == [intent_id]
    [row] = outbox.call("operator", "cancel_intent", intent_id, "ann", "a test")
    assert row["cancel_intent"] == "in_flight"
    await stores.executor.release_lease(leader.term.lease)
    await stores.executor.acquire_lease("leader", "b", 30)
    assert outbox.states(intent_id) == ["IN_DOUBT"]


@pytest.mark.parametrize("is_ended_by_hand", [False, True])
async def test_leader_steps_down_for_a_result_that_is_refused_and_records_the_others(
    stores, outbox, is_ended_by_hand
):
    """Else it would read the row again, and make the call again and again."""
    guarantee = "keyed" if is_ended_by_hand else "lookup"
    terms = {"scope": "cluster", "guarantee": guarantee, "lease_name": "leader"}
    outbox.publish("bank", **terms)
    outbox.publish("post", **terms | {"guarantee": "keyed"})
    [refused] = outbox.enqueue(1, "bank")
    others = outbox.enqueue(3, "post")
    leader = await leader_of(stores, "bank", "post")
    await leader.dispatcher.step()
    if is_ended_by_hand:
        outbox.database.owner_execute(END_BY_HAND, [refused])  # 23505
    for item in leader.runner.started:
        item.call()
        leader.completer.complete(item, Accepted(), 0.001)  # P7003: it was never begun
    await asyncio.sleep(0.002)
    await leader.completer.step()
    assert [outbox.states(one) for one in others] == [["DISPATCHED"]] * 3
    assert len(leader.troubles) == 1
    await leader.dispatcher.leave()
    assert await stores.executor.release_lease(leader.term.lease)
    assert (await stores.executor.acquire_lease("leader", "b", 30)).is_ours


async def test_leader_whose_last_mark_failed_unmarks_its_other_calls(leader, outbox, stores):
    await leader.dispatcher.step()
    assert len(marked(outbox)) == 1
    leader.slots.let_go(leader.runner.started)
    await stores.ingest.enqueue_intent(NewIntent(target="bank", payload=2))
    await leader.reconcile()
    step = await leader.paused(leader.dispatcher, "before", "mark_calls")
    outbox.database.execute("ALTER FUNCTION leasehold.mark_calls RENAME TO mark_calls_gone")
    leaving = asyncio.create_task(leader.dispatcher.leave())
    await asyncio.sleep(0.05)
    leader.store.may_go.set()
    await asyncio.gather(leaving, step)
    assert (marked(outbox), len(leader.troubles)) == ([], 1)


async def test_only_calls_that_start_now_are_marked_however_many_targets_have_work(stores, outbox):
    """A marked call cannot be cancelled, and a successor puts it in doubt."""
    targets = ("bank", "post", "fax")
    await publish(stores, *targets)
    for target in targets:
        outbox.enqueue(40, target)
    leader = await leader_of(stores, *targets)
    while len(leader.runner.started) < 120:
        await leader.dispatcher.step()
        in_flight = leader.slots.all()
        assert len(in_flight) <= leader.slots.total
        assert leader.queue.in_flight == len(in_flight)
        assert set(marked(outbox)) & pending(outbox) == set(ids(in_flight))
        await leader.finish(in_flight[0])  # one by one, so that little room is left
    assert leader.troubles == []


async def test_calls_start_with_their_content_whether_it_came_with_the_window_or_not(
    stores, outbox
):
    await publish(stores, "bank", "post")
    for target in ("bank", "post"):
        for payload in (0, LARGE):
            await stores.ingest.enqueue_intent(NewIntent(target=target, payload=payload))
    leader = await leader_of(stores, "bank", "post")
    contents = [item.row.has_content for item in map(leader.queue.find, leader.queue.known())]
    assert sorted(contents) == [False, False, True, True]
    await leader.dispatcher.step()
    payloads = sorted(str(item.claimed.payload.value()) for item in leader.runner.started)
    assert payloads == sorted(["0", "0", LARGE, LARGE])
    assert sorted(marked(outbox)) == sorted(ids(leader.runner.started))


async def test_intent_cancelled_before_its_mark_is_neither_called_nor_missed(stores, outbox):
    await publish(stores, "bank")
    cancelled, kept = outbox.enqueue(2, "bank")
    leader = await leader_of(stores, "bank")
    await stores.operator.cancel_intent(cancelled, "ann", "a test")
    await leader.dispatcher.step()
    assert ids(leader.runner.started) == marked(outbox) == [kept]
    assert leader.queue.has_left_out
    await leader.reader.step()
    refresh_seconds = Timings().schedule_refresh_seconds
    assert leader.reader._reconcile_at <= leader.slots.clock() + refresh_seconds
    await leader.reconcile()
    assert (leader.queue.has_left_out, leader.queue.known()) == (False, {kept.int})


async def test_row_that_a_mark_left_out_too_early_is_called_after_the_reconcile(stores, outbox):
    """The row has changed since the leader read it."""
    await publish(stores, "bank")
    [intent_id] = outbox.enqueue(1, "bank")
    leader = await leader_of(stores, "bank")
    postpone = "UPDATE leasehold.outbox_pending SET due_at = due_at + %s::interval"
    outbox.database.execute(postpone, ["1 hour"])
    await leader.dispatcher.step()
    assert (leader.runner.started, leader.queue.has_left_out) == ([], True)
    outbox.database.execute(postpone, ["-1 hour"])
    await leader.dispatcher.step()
    assert leader.runner.started == []
    await leader.reconcile()
    await leader.dispatcher.step()
    assert ids(leader.runner.started) == [intent_id]


async def test_mark_under_a_lost_lease_starts_nothing_and_is_reported(leader, outbox):
    outbox.expire_lease("leader")
    await leader.dispatcher.step()
    [error] = leader.troubles
    assert isinstance(error, LeaseLost)
    assert (leader.runner.started, marked(outbox)) == ([], [])


class CountingStore:
    """The real store, which counts the changed rows that it returns."""

    def __init__(self, store):
        self._store = store
        self.rows = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def refresh_schedule(self, *arguments):
        rows = await self._store.refresh_schedule(*arguments)
        self.rows += len(rows)
        return rows


async def refreshed(leader):
    """Refresh once; return how many rows were read."""
    leader.reader._refresh_at = 0.0
    before = leader.reader._changes._source.rows
    await leader.reader.step()
    while leader.reader._changes.has_more:
        await leader.reader.step()
    return leader.reader._changes._source.rows - before


async def test_changes_since_a_writer_that_stays_open_are_read_once(leader, outbox, monkeypatch):
    monkeypatch.setattr(changes, "PAGE", 10)
    leader.reader._changes._source = CountingStore(leader.store)
    writer = outbox.database.session("ingest")
    writer.run("BEGIN")
    [late] = writer.run(ENQUEUE)
    outbox.enqueue(95, "bank")
    assert await refreshed(leader) == 95
    assert await refreshed(leader) == 0, "an open writer makes nobody read again"
    outbox.enqueue(1, "bank")
    assert await refreshed(leader) == 1
    writer.run("COMMIT")
    assert await refreshed(leader) >= 97
    assert leader.queue.find(late["intent_id"].int) is not None
    assert await refreshed(leader) == 0
    await leader.reconcile()
    missed = leader.reader._metrics.registry.get_sample_value(
        "leasehold_schedule_missed_total", {"worker_id": "", "lease_name": "leader"}
    )
    assert missed == 0


async def test_changes_since_a_long_writer_keep_no_newer_ones_waiting(leader, outbox, monkeypatch):
    monkeypatch.setattr(changes, "PAGE", 2)
    monkeypatch.setattr(changes, "PAGES_AT_ONCE", 1)
    leader.reader._changes._source = CountingStore(leader.store)
    writer = outbox.database.session("ingest")
    writer.run("BEGIN")
    writer.run(ENQUEUE)
    outbox.enqueue(50, "bank")
    await refreshed(leader)
    writer.run("COMMIT")
    leader.reader._refresh_at = 0.0
    await leader.reader.step()
    assert len(leader.reader._changes._passes) == 1, "the pass of the long writer is not complete"
    [newest] = outbox.enqueue(1, "bank")
    leader.reader._refresh_at = 0.0
    await leader.reader.step()
    assert leader.queue.find(newest.int) is not None
    assert len(leader.reader._changes._passes) == 1
    await leader.reconcile()
    await refreshed(leader)
    assert leader.queue.known() == {one.int for one in pending(outbox)}


@pytest.mark.parametrize("name", ["refresh_due_rows", "refresh_schedule"])
async def test_intent_that_finishes_during_a_read_is_not_called_again(leader, name):
    await leader.dispatcher.step()
    [item] = leader.runner.started
    leader.reader._reconcile_at = leader.reader._refresh_at = 0.0
    leader.reader._changes._read_to = (LONG_AGO, ZERO_ID)
    step = await leader.paused(leader.reader, "after", name)
    await leader.finish(item)
    leader.store.may_go.set()
    await step
    await leader.dispatcher.step()
    assert leader.runner.started == [item]
    # The mark left nothing out either, which would cause a full read.
    assert (leader.queue.known(), leader.queue.has_left_out) == (set(), False)


async def test_given_back_intent_waits_for_its_delay_whatever_is_read_meanwhile(leader):
    await leader.dispatcher.step()
    [item] = leader.runner.started
    await leader.give_back(item, delay_seconds=60.0)
    for _ in range(2):
        await leader.reconcile()
        await leader.dispatcher.step()
    assert leader.runner.started == [item]
    waiting = leader.queue.find(item.intent_no)
    assert waiting.state is ItemState.WAITING
    assert leader.queue.seconds_until_due(leader.slots.clock()) == pytest.approx(60, abs=10)


async def test_retryable_result_is_called_again_under_the_next_attempt(leader):
    await leader.dispatcher.step()
    [item] = leader.runner.started
    await leader.finish(item, Retryable(retry_after_seconds=0.0))
    leader.reader.hint()
    await leader.reader.step()
    await leader.dispatcher.step()
    assert [one.claimed.attempt_no for one in leader.runner.started] == [1, 2]


async def test_change_read_during_a_call_applies_when_the_call_has_ended(leader, outbox):
    await leader.dispatcher.step()
    [item] = leader.runner.started
    outbox.database.execute(
        "UPDATE leasehold.outbox_pending SET priority = 0, last_modified_at = clock_timestamp()"
    )
    leader.reader.hint()
    await leader.reader.step()
    assert item.newer is not None
    await leader.give_back(item, delay_seconds=60.0)
    await leader.dispatcher.step()
    assert [one.claimed.priority for one in leader.runner.started] == [1, 0]


class SlowLookups:
    """Accepts everything for a later confirmation. Its answers wait for the test."""

    def __init__(self, answer):
        self.answer = answer
        self.submitted = 0
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def submit(self, submission):
        del submission
        self.submitted += 1
        return Submitted(reference=f"submission {self.submitted}", ask_after_seconds=60)

    async def lookup(self, submission):
        del submission
        self.is_asked.set()
        await self.may_answer.wait()
        return self.answer


class Contracts:
    def __init__(self, guarantee, gateway):
        contract = Contract(
            target="bank",
            version=1,
            scope="cluster",
            guarantee=guarantee,
            gateway=PythonTerms(function="a:b", lookup="a:c"),
        )
        self._served = Served(contract=contract, gateway=gateway, lease_seconds=30)

    async def of(self, target, version):
        del target, version
        return self._served

    def observe(self, item, outcome, metrics):
        pass


async def work(leader):
    """Read and start what is due, and record what ends, until nothing is under way."""
    async with asyncio.timeout(20):
        leader.reader.hint()
        await leader.reader.step()
        await leader.dispatcher.step()
        while len(leader.slots):
            await asyncio.sleep(0.002)
            await leader.completer.step()


@pytest.mark.parametrize("guarantee", ["keyed", "lookup"])
@pytest.mark.parametrize("answer", [Accepted(), Rejected(), NotFound(), Unknown()])
async def test_answer_about_a_submission_that_an_operator_has_resolved_is_dropped(
    stores, outbox, guarantee, answer
):
    outbox.publish(
        "bank", scope="cluster", lease_name="leader", guarantee=guarantee, can_look_up=True
    )
    [intent_id] = outbox.enqueue(1, "bank")
    leader = await leader_of(stores, "bank")
    gateway = SlowLookups(answer)
    leader.dispatcher._runner = Runner(
        leader.slots,
        Contracts(guarantee, gateway),
        leader.completer,
        Metrics(),
        on_error=leader.troubles.append,
    )
    await work(leader)
    outbox.make_due()
    await leader.reconcile()
    asking = asyncio.create_task(work(leader))
    async with asyncio.timeout(20):
        await gateway.is_asked.wait()
    assert await stores.operator.resolve_intent(intent_id, "RETRYABLE", "ann", "lost") == "resolved"
    gateway.may_answer.set()
    await asking
    assert outbox.states(intent_id) == ["SUBMITTED", "RETRYABLE"]

    await leader.reconcile()
    await work(leader)
    ledger = [(row["state"], row["reference"]) for row in outbox.ledger(intent_id)]
    assert ledger[2:] == [("SUBMITTED", "submission 2")]
    assert leader.troubles == []
