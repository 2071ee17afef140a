"""A model-based test of a leader's items: reader, dispatcher and completer run on a model of the
tables, and their reads, marks and writes are answered in any order.

What must hold: a call is covered by a mark, and is made once under it; nothing pending is lost
sight of; memory is bounded; a leader that leaves puts nothing in doubt that it did not call.
Broken variants of the code are kept as expected counterexamples.
"""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from leasehold.coordination.term import Term
from leasehold.domain.intent import IntentId
from leasehold.domain.lease import Lease, TrustWindow
from leasehold.domain.outcome import Accepted, Retryable
from leasehold.domain.timing import Timings
from leasehold.executor.claim_size import CallTimes
from leasehold.executor.completer import Completer
from leasehold.executor.fences import LeaseFence
from leasehold.executor.item import ItemState
from leasehold.executor.leader.dispatcher import Dispatcher, Marks
from leasehold.executor.leader.due_queue import DueQueue
from leasehold.executor.leader.reader import Reader
from leasehold.executor.limits import Gate
from leasehold.executor.slots import SlotPool, Slots
from leasehold.observe.metrics import Metrics
from leasehold.store.postgres.changes import OpenWriters, PostgresChanges
from leasehold.store.rows import DueRow, Marked, as_claimed

EPOCH = datetime(2031, 5, 4, 12, tzinfo=UTC)
SLOTS = 6
ROWS_MAX = 30


@dataclass(frozen=True)
class Pending:
    """A row of the table of pending intents."""

    number: int
    priority: int
    due: float
    attempt_no: int
    stamp: int


class ModelDatabase:
    """The tables of pending intents and of call marks. A call is answered when the test says so."""

    def __init__(self):
        self.now = 1000.0
        self.rows: dict[int, Pending] = {}
        self.marks: dict[int, set[tuple[int, int]]] = {}
        self.mark_of: dict[tuple[int, int], int] = {}  # which execution of mark_calls was the last
        # Of this leader: what it has finished, and the newest stamp that it has read of each row.
        self.finished: set[int] = set()
        self.read: dict[int, datetime] = {}
        self.unanswered: dict[str, asyncio.Future[None]] = {}
        # When each open writer began, and the row that it will commit.
        self.writers: dict[str, tuple[int, Pending]] = {}
        self._stamps = self._executions = self._numbers = 0

    def write(self, **columns):
        self._stamps += 1
        self.rows[columns["number"]] = Pending(**columns, stamp=self._stamps)

    def change(self, row, **columns):
        self.write(
            **{name: getattr(row, name) for name in Pending.__annotations__ if name != "stamp"}
            | columns
        )

    def enqueue(self, priority, delay):
        self._numbers += 1
        self.write(number=self._numbers, priority=priority, due=self.now + delay, attempt_no=1)

    def open_writer(self, began_ago):
        """Begin a transaction and write a row, which nobody else sees until it is committed."""
        self._numbers += 1
        began = self._stamps - began_ago
        self._stamps += 1
        row = Pending(self._numbers, priority=1, due=self.now, attempt_no=1, stamp=self._stamps)
        self.writers[f"writer {row.number}"] = (began, row)

    def commit(self, writer):
        _, row = self.writers.pop(writer)
        self.rows[row.number] = row

    def is_marked(self, row):
        return any((row.number, row.attempt_no) in mark for mark in self.marks.values())

    def take_over(self):
        """Put marked calls in doubt: they are tried again, as the next attempt."""
        for row in [one for one in self.rows.values() if self.is_marked(one)]:
            self.change(row, attempt_no=row.attempt_no + 1)
        self.marks.clear()

    async def refresh_due_rows(self, holder_id, leases, targets, limit, content_bytes, after):
        del holder_id, leases, targets, content_bytes
        found = []
        for priority in range(4):
            order = sorted(
                (EPOCH + timedelta(seconds=row.due), IntentId(UUID(int=row.number)), row)
                for row in self.rows.values()
                if row.priority == priority
            )
            if after is not None:
                position = after["sms"].get(priority)
                order = [one for one in order if position is not None and one[:2] > position]
            found += [row for _, _, row in order[:limit]]
        return await self._answer_read([self._due_row(row) for row in found])

    def changes(self, lease):
        return PostgresChanges(self, lease)

    async def read_open_writers(self):
        self._stamps += 1  # the clock moves on
        began_at = {name: _stamped(began) for name, (began, _) in self.writers.items()}
        return await self._answer("read", OpenWriters(_stamped(self._stamps), began_at))

    async def refresh_schedule(self, holder_id, leases, after, limit):
        del holder_id, leases
        order = sorted(map(self._due_row, self.rows.values()), key=_cursor)
        changed = [row for row in order if after is None or _cursor(row) > after]
        return await self._answer_read(changed[:limit])

    async def mark_calls(self, lease, rows, mark_no):
        del lease
        self._executions += 1
        left_out = []
        marked = set()
        for row in rows:
            number = row.intent_id.int
            pending = self.rows.get(number)
            is_due = pending and (pending.attempt_no, pending.due <= self.now) == (
                row.attempt_no,
                True,
            )
            if is_due:
                marked.add((number, row.attempt_no))
                self.mark_of[number, row.attempt_no] = self._executions
            else:
                left_out.append(row.intent_id)
            assert number not in self.finished, "a finished intent was marked again"
            assert row.version >= self.read[number], "an old version was marked"
        self.marks[mark_no] = marked
        now = EPOCH + timedelta(seconds=self.now)
        calls = as_claimed([row for row in rows if row.intent_id not in left_out], now)
        return await self._answer("mark", Marked(now, left_out, calls))

    async def unmark_calls(self, lease, keep):
        del lease
        kept = {one.int for one in keep}
        for mark in self.marks.values():
            mark -= {call for call in mark if call[0] not in kept}
        await self._answer("mark", None)

    async def record_attempts(self, lease, results, *, tell_dispatched):
        del lease, tell_dispatched
        for result in results:
            row = self.rows[result.intent_id.int]
            if isinstance(result.outcome, Accepted):
                del self.rows[row.number]
                self.finished.add(row.number)
            else:
                due = self.now + result.outcome.retry_after_seconds
                self.change(row, due=due, attempt_no=row.attempt_no + 1)
        return await self._answer("record", [])

    async def _answer_read(self, rows):
        await self._answer("read", rows)
        for row in rows:
            number = row.intent_id.int
            self.read[number] = max(row.version, self.read.get(number, EPOCH))
        return rows

    async def _answer(self, kind, answer):
        self.unanswered[kind] = asyncio.get_running_loop().create_future()
        await self.unanswered[kind]
        return answer

    def _due_row(self, row):
        values = dict.fromkeys(DueRow._fields) | {
            "intent_id": IntentId(UUID(int=row.number)),
            "target": "sms",
            "contract_version": 1,
            "attempt_no": row.attempt_no,
            "priority": row.priority,
            "created_at": EPOCH,
            "due_at": EPOCH + timedelta(seconds=row.due),
            "version": _stamped(row.stamp),
            "wait_seconds": row.due - self.now,
        }
        return DueRow(**values)


def _stamped(stamp):
    return EPOCH + timedelta(microseconds=stamp)


def _cursor(row):
    return (row.version, row.intent_id)


class StrictMetrics(Metrics):
    def schedule(self, lease_name, size, missed=0):
        super().schedule(lease_name, size, missed)
        assert missed == 0, "the cursor missed rows, or an item was lost sight of"


METRICS = StrictMetrics()


class Targets:
    """One target, which all scopes may serve. It takes fewer calls than there are slots."""

    def __init__(self):
        self.current = {"sms": None}
        self._gate = Gate(SLOTS - 1, None)

    def of_group(self, lease_name):
        del lease_name
        return ["sms"]

    def gate(self, target):
        del target
        return self._gate


class Leader:
    """The parts of one term. It also is the runner: the test makes the calls."""

    times = CallTimes(Metrics())

    def __init__(self, database, slots, targets, queue_class, marks_class, size_max):
        def on_error(error):
            raise error

        lease = Lease(
            name="leader", holder_id="a", epoch=1, expires_at=EPOCH, grace_expires_at=EPOCH
        )
        self.started = []
        self.database = database
        self.term = Term(lease, TrustWindow(math.inf))
        self.slots = slots
        self.queue = queue_class(size_max, LeaseFence(database, lease), self.term)
        self.completer = Completer(self.slots, METRICS, on_error=on_error)
        parts = database, self.term, self.queue, self.slots, targets
        self.reader = Reader(*parts, METRICS, Timings, on_error=on_error)
        self.dispatcher = Dispatcher(*parts, self, METRICS, Timings, on_error=on_error)
        self.dispatcher._marks = marks_class()

    def start(self, items):
        self.started += items

    def of_state(self, state):
        return sorted(
            (item for item in self.started if item.state is state), key=lambda item: item.intent_no
        )


class LeaderItems(RuleBasedStateMachine):
    queue_class = DueQueue
    marks_class = Marks
    slots_class = Slots
    size_max = 100

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.database = ModelDatabase()
        self.tasks = {}
        self.called = set()
        self.not_before = {}
        self.pool = SlotPool(SLOTS, lambda: self.database.now)
        self.targets = Targets()
        self.promote()

    def promote(self):
        self.leader = Leader(
            self.database,
            self.slots_class("a", self.pool),
            self.targets,
            self.queue_class,
            self.marks_class,
            self.size_max,
        )
        self.database.finished.clear()
        self.database.read.clear()
        self.begin("read", self.leader.reader.build())
        self.settle()
        self.leader.dispatcher.open()

    # One step of a service at a time, each with at most one call that is not answered

    def begin(self, kind, step, is_answered=False):
        self.tasks[kind] = self.loop.create_task(step)
        self.spin()
        while is_answered and kind in self.tasks:
            self.answer_call(kind)

    def spin(self):
        async def turns():
            for _ in range(8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())
        for kind, task in list(self.tasks.items()):
            if task.done():
                del self.tasks[kind]
                task.result()

    def answer_call(self, kind):
        self.database.unanswered.pop(kind).set_result(None)
        self.spin()

    def settle(self):
        """Answer everything that is asked until nothing is."""
        while self.tasks:
            for kind in list(self.database.unanswered):
                self.answer_call(kind)
            self.spin()

    # What others do

    @precondition(lambda self: len(self.database.rows) < ROWS_MAX)
    @rule(count=st.integers(1, 6), priority=st.integers(0, 3), delay=st.sampled_from([0, 0, 0, 5]))
    def enqueue(self, count, priority, delay):
        for _ in range(count):
            self.database.enqueue(priority, delay)

    @precondition(lambda self: self.database.rows)
    @rule(data=st.data(), priority=st.sampled_from([None, 0, 1, 2, 3]))
    def change_or_cancel(self, data, priority):
        row = self.database.rows[data.draw(st.sampled_from(sorted(self.database.rows)))]
        if priority is not None:
            self.database.change(row, priority=priority)
        elif not self.database.is_marked(row):
            del self.database.rows[row.number]

    @precondition(
        lambda self: len(self.database.rows) < ROWS_MAX and len(self.database.writers) < 3
    )
    @rule(began_ago=st.integers(0, 5))
    def open_writer(self, began_ago):
        self.database.open_writer(began_ago)

    @precondition(lambda self: self.database.writers)
    @rule(data=st.data())
    def commit(self, data):
        self.database.commit(data.draw(st.sampled_from(sorted(self.database.writers))))

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0, 6.0]))
    def pass_time(self, seconds):
        self.database.now += seconds

    # What the leader does

    @precondition(lambda self: "read" not in self.tasks)
    @rule(
        kind=st.sampled_from(["hint", "hint", "reconcile", "as it comes"]),
        is_answered=st.booleans(),
    )
    def read(self, kind, is_answered):
        reader = self.leader.reader
        if kind == "hint":
            reader.hint()
        elif kind == "reconcile":
            reader._reconcile_at = 0.0
        self.begin("read", reader.step(), is_answered)

    @precondition(lambda self: "mark" not in self.tasks)
    @rule(is_answered=st.booleans())
    def dispatch(self, is_answered):
        self.begin("mark", self.leader.dispatcher.step(), is_answered)

    @precondition(lambda self: "record" not in self.tasks)
    @rule(is_answered=st.booleans())
    def record(self, is_answered):
        self.leader.completer._first_at = 0.0
        self.begin("record", self.leader.completer.step(), is_answered)

    @precondition(lambda self: self.database.unanswered)
    @rule(data=st.data())
    def answer(self, data):
        self.answer_call(data.draw(st.sampled_from(sorted(self.database.unanswered))))

    @precondition(lambda self: self.leader.of_state(ItemState.MARKED))
    @rule(count=st.integers(1, SLOTS))
    def call(self, count):
        for item in self.leader.of_state(ItemState.MARKED)[:count]:
            self.make_call(item)

    def make_call(self, item):
        number, attempt_no = key = item.intent_no, item.claimed.attempt_no
        others = [one.intent_no for one in self.leader.of_state(ItemState.CALLING)]
        assert number not in others, "two calls of one intent at once"
        assert (key, self.database.mark_of[key]) not in self.called, "called twice under one mark"
        assert self.database.rows[number].attempt_no == attempt_no
        stamp, until = self.not_before.get(number, (None, 0.0))
        if stamp == self.database.rows[number].stamp:
            assert self.database.now >= until, "called before its delay was over"
        self.called.add((key, self.database.mark_of[key]))
        item.call()

    @precondition(lambda self: self.leader.of_state(ItemState.CALLING))
    @rule(
        count=st.integers(1, SLOTS),
        outcome=st.sampled_from([Accepted(), Retryable(retry_after_seconds=3)]),
        is_recorded=st.booleans(),
    )
    def finish(self, count, outcome, is_recorded):
        for item in self.leader.of_state(ItemState.CALLING)[:count]:
            self.leader.completer.complete(item, outcome, 0.001)
        if is_recorded and "record" not in self.tasks:
            self.record(is_answered=True)

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data(), delay=st.sampled_from([0.0, 1.0, 5.0]))
    def give_back(self, data, delay):
        self.give_back_item(data.draw(st.sampled_from(self.in_flight())), delay)

    def give_back_item(self, item, delay):
        self.leader.completer.give_back(item, delay)
        if self.size_max > ROWS_MAX:  # else it may not fit
            self.not_before[item.intent_no] = (self.stamp_of(item), self.database.now + delay)

    def return_item(self, item, delay):
        self.give_back_item(item, delay)
        self.record(is_answered=True)

    def start_calls(self, count):
        self.enqueue(count, priority=1, delay=0)
        self.read("hint", is_answered=True)
        self.dispatch(is_answered=True)
        self.call(count)

    def in_flight(self):
        return self.leader.of_state(ItemState.MARKED) + self.leader.of_state(ItemState.CALLING)

    def stamp_of(self, item):
        return (item.row.version - EPOCH) // timedelta(microseconds=1)

    @rule(how=st.sampled_from(["killed", "waits for its calls", "does not wait"]))
    def end_term(self, how):
        if how == "killed":
            self.cancel_tasks()
        else:
            self.step_down(waits_for_calls=how == "waits for its calls")
        self.take_over()

    def step_down(self, *, waits_for_calls):
        self.leader.term.close("a test")
        for item in self.leader.of_state(ItemState.MARKED):
            self.leader.completer.give_back(item, 0.0)
        if waits_for_calls:
            for item in self.leader.of_state(ItemState.CALLING):
                self.leader.completer.complete(item, Accepted(), 0.001)
        self.settle()
        self.leader.completer._first_at = 0.0
        self.begin("record", self.leader.completer.step(), is_answered=True)
        self.begin("mark", self.leader.dispatcher.leave(), is_answered=True)
        calling = {item.intent_no for item in self.leader.of_state(ItemState.CALLING)}
        pending = self.database.rows.values()
        doubted = {row.number for row in pending if self.database.is_marked(row)}
        assert doubted == calling, "a successor doubts what was not called, or not what was"

    def cancel_tasks(self, kinds=("read", "mark", "record")):
        tasks = [self.tasks.pop(kind) for kind in kinds if kind in self.tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        for kind in kinds:
            self.database.unanswered.pop(kind, None)

    def take_over(self):
        self.leader.slots.close()
        self.database.take_over()
        self.not_before.clear()
        self.promote()

    # What must hold at any moment

    @invariant()
    def each_item_has_one_state(self):
        leader = self.leader
        states = [leader.queue.find(number).state for number in leader.queue.known()]
        queued = [state for state in states if state <= ItemState.READY]
        assert len(leader.queue) == len(queued) <= self.size_max
        for item in leader.slots.all():
            assert leader.queue.find(item.intent_no) is item
            assert ItemState.MARKED <= item.state <= ItemState.RECORDING

    @invariant()
    def memory_is_bounded(self):
        queue = self.leader.queue
        ended = 0 if "read" not in self.tasks else self.size_max + SLOTS
        results = len(self.leader.of_state(ItemState.RECORDING))
        assert results <= self.pool.results_max + SLOTS
        assert len(queue.known()) <= self.size_max + SLOTS + results + ended
        places = queue._queues["sms"]
        assert len(places.ready) + len(places.waiting) <= 2 * self.size_max + 1
        assert len(self.database.marks) <= SLOTS + results + 1

    @invariant()
    def each_call_is_marked(self):
        for item in self.leader.of_state(ItemState.CALLING):
            assert self.database.is_marked(self.database.rows[item.intent_no])

    def teardown(self):
        """Nothing is lost sight of: all that is pending is called within some rounds."""
        try:
            self.settle()
            for writer in list(self.database.writers):
                self.database.commit(writer)
            for _ in range(3 * ROWS_MAX):
                if not self.database.rows:
                    break
                self.finish_round()
            assert not self.database.rows, "an intent that is due was not called"
        finally:
            self.close()

    def close(self):
        self.cancel_tasks(list(self.tasks))
        self.loop.close()

    def finish_round(self):
        self.database.now += 10.0
        for item in self.leader.of_state(ItemState.MARKED):
            self.make_call(item)
        for item in self.leader.of_state(ItemState.CALLING):
            self.leader.completer.complete(item, Accepted(), 0.001)
        for kind, service in (
            ("record", self.leader.completer),
            ("read", self.leader.reader),
            ("mark", self.leader.dispatcher),
        ):
            self.leader.completer._first_at = 0.0
            self.begin(kind, service.step(), is_answered=True)


class FewFit(LeaderItems):
    size_max = 8


# Half of the examples are the same each time; pytest prints the seed of the others.
FIXED = settings(
    max_examples=50, stateful_step_count=50, deadline=None, derandomize=True, database=None
)
RANDOM = settings(
    FIXED,
    max_examples=int(os.environ.get("TEST_HYPOTHESIS_EXAMPLES", "50")),
    derandomize=False,
    print_blob=True,
)


@pytest.mark.parametrize("examples", [FIXED, RANDOM], ids=["fixed", "random"])
@pytest.mark.parametrize("machine", [LeaderItems, FewFit], ids=["all fit", "few fit"])
def test_no_item_is_called_twice_or_lost_in_any_order_of_events(machine, examples):
    run_state_machine_as_test(machine, settings=examples)


# Broken variants. Each script passes with the right code and fails with the broken one.


class ForgetsWhatEnds(DueQueue):
    @contextmanager
    def reading(self):
        yield


def finish_during_a_read(machine):
    machine.start_calls(1)
    machine.read("reconcile", is_answered=False)
    machine.finish(1, Accepted(), is_recorded=True)
    machine.answer_call("read")
    machine.dispatch(is_answered=True)


class IgnoresChangesInFlight(DueQueue):
    def end(self, items):
        for item in items:
            item.newer = None
        super().end(items)


def change_in_flight(machine):
    machine.start_calls(1)
    machine.database.change(machine.database.rows[1], priority=0)
    machine.read("hint", is_answered=True)
    machine.return_item(machine.in_flight()[0], delay=0.0)
    machine.dispatch(is_answered=True)


class ForgetsDelays(DueQueue):
    def end(self, items):
        for item in items:
            if item.given_back_until is not None:
                item.given_back_until = 0.0
        super().end(items)


def give_back_for_a_while(machine):
    machine.start_calls(1)
    machine.return_item(machine.in_flight()[0], delay=5.0)
    machine.dispatch(is_answered=True)
    machine.call(1)


class LosesWhatIsGivenBack(DueQueue):
    def end(self, items):
        for item in items:
            item.given_back_until = None
        super().end(items)


def give_back_and_reconcile(machine):
    machine.start_calls(1)
    machine.return_item(machine.in_flight()[0], delay=0.0)
    machine.read("reconcile", is_answered=True)


class CallsWhatIsFinished(DueQueue):
    def end(self, items):
        for item in items:
            item.outcome = None
        super().end(items)


def change_in_flight_and_finish(machine):
    machine.start_calls(1)
    machine.database.change(machine.database.rows[1], priority=0)
    machine.read("hint", is_answered=True)
    machine.finish(1, Accepted(), is_recorded=True)
    machine.dispatch(is_answered=True)


class ReusesNumbersTooSoon(Marks):
    def end(self, item):
        if item.mark is not None:
            self._numbers.discard(item.mark.number)
        super().end(item)


def mark_while_one_of_two_is_called(machine):
    machine.start_calls(2)
    machine.finish(1, Accepted(), is_recorded=True)
    machine.start_calls(1)
    machine.each_call_is_marked()


class KeepsItsLowWaterMarks(DueQueue):
    def learn(self, row, received_at):
        kept = list(self._queues["sms"].due_from)
        super().learn(row, received_at)
        self._queues["sms"].due_from = kept


def drain_what_did_not_fit(machine):
    """Changes that did not fit into the queue are read again when there is room."""
    machine.enqueue(20, priority=1, delay=0)
    machine.read("hint", is_answered=True)
    for _ in range(10):
        machine.dispatch(is_answered=True)
        machine.call(SLOTS)
        machine.finish(SLOTS, Accepted(), is_recorded=True)
        machine.database.now += 1.0
        machine.read("as it comes", is_answered=True)
    assert not machine.database.rows, "what did not fit was lost sight of"


@pytest.mark.parametrize(
    ("broken", "script"),
    [
        (KeepsItsLowWaterMarks, drain_what_did_not_fit),
        (ForgetsWhatEnds, finish_during_a_read),
        (IgnoresChangesInFlight, change_in_flight),
        (ForgetsDelays, give_back_for_a_while),
        (LosesWhatIsGivenBack, give_back_and_reconcile),
        (CallsWhatIsFinished, change_in_flight_and_finish),
        (ReusesNumbersTooSoon, mark_while_one_of_two_is_called),
    ],
    ids=lambda one: one.__name__,
)
def test_model_refuses_the_broken_variant(broken, script):
    right = FewFit if script is drain_what_did_not_fit else LeaderItems
    machine = right()
    script(machine)
    machine.teardown()
    part = "queue_class" if issubclass(broken, DueQueue) else "marks_class"
    machine = type("Broken", (right,), {part: broken})()
    with pytest.raises(AssertionError):
        script(machine)
    machine.close()
