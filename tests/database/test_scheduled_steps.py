"""What happens to a leader between two moments of one step, while it waits for the database."""

from __future__ import annotations

import asyncio
import math

import pytest

from leasehold.coordination.claims import Claims
from leasehold.coordination.term import Term
from leasehold.domain.intent import NewIntent
from leasehold.domain.lease import TrustWindow
from leasehold.domain.timing import Timings
from leasehold.executor.completer import Completer
from leasehold.executor.fence import LeaseFence
from leasehold.executor.leader.executor import LeaderExecutor
from leasehold.executor.limits import Gate
from leasehold.observe.metrics import Metrics

pytestmark = pytest.mark.one_server


class Pausing:
    """The real store, which before a call of one name waits until it is told to go on."""

    def __init__(self, store):
        self._store = store
        self.name = None
        self.is_waiting, self.may_go = asyncio.Event(), asyncio.Event()

    def pause_before(self, name):
        self.name = name
        self.is_waiting, self.may_go = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name):
        call = getattr(self._store, name)
        if name != self.name:
            return call

        async def paused(*arguments):
            self.is_waiting.set()
            await self.may_go.wait()
            return await call(*arguments)

        return paused


class Served:
    """Targets that take ten calls at a time each."""

    def __init__(self, targets):
        self._gates = {target: Gate(10, None) for target in targets}

    def of_group(self, _lease_name):
        return list(self._gates)

    def gate(self, target):
        return self._gates[target]


class Calls:
    """Starts nothing: the test says what becomes of calls."""

    latency_seconds = 0.0

    def __init__(self, completion):
        self.held, self.is_closed = [], False
        self._completion = completion

    def start(self, batch):
        self.held += batch
        if self.is_closed:
            for held in batch:
                self._completion.give_back(held, 0.0)


class Leader:
    def __init__(self, store, lease, *targets):
        self.store = Pausing(store)
        self.term = Term(lease, TrustWindow(math.inf))
        self.claims = Claims("a", 10)
        self.troubles = []
        self.executor = LeaderExecutor(
            self.store,
            self.term,
            self.claims,
            Served(targets),
            Metrics(),
            Timings,
            confirm=self.confirm,
            trouble=self.troubles.append,
        )
        fence = LeaseFence(self.store, lease, self.executor.put_off)
        self.completion = Completer(fence, self.claims, Metrics(), trouble=self.troubles.append)
        self.calls = self.executor.attempts = Calls(self.completion)

    async def confirm(self):
        """Nobody else stands for it here."""

    async def step_paused_before(self, name):
        """Begin a step, and come back when it waits for this call."""
        self.store.pause_before(name)
        step = asyncio.create_task(self.executor.step())
        async with asyncio.timeout(10):
            await self.store.is_waiting.wait()
        return step


@pytest.fixture
async def leader(stores):
    terms = {"scope": "cluster", "guarantee": "keyed", "lease_name": "leader"}
    await stores.operator.publish_contract("bank", terms, "ann")
    await stores.ingest.enqueue_intent(NewIntent(target="bank", payload=1))
    lease = (await stores.executor.acquire_lease("leader", "a", 30)).lease
    return Leader(stores.executor, lease, "bank")


def marked(outbox):
    rows = outbox.database.execute("SELECT unnest(intent_ids) AS one FROM leasehold.call_marks")
    return [row["one"] for row in rows]


async def test_call_that_is_given_back_and_made_again_within_one_step_is_not_forgotten(
    leader, outbox
):
    """It lost its mark, and with the next window it was called a second time beside the first."""
    await leader.executor.step()
    [first] = leader.calls.held
    # Something else was falsely marked, and while that is put right a late renewal gives it back.
    leader.executor._is_falsely_marked = True
    step = await leader.step_paused_before("keep_scheduled_calls")
    leader.completion.give_back(first, 0.0)
    await leader.completion.step()
    leader.store.may_go.set()
    await step
    for _ in range(3):
        leader.executor._reconcile_at = 0.0  # everything is looked at anew
        await leader.executor.step()
    assert [held.claimed.intent_id for held in leader.calls.held] == [first.claimed.intent_id] * 2
    assert marked(outbox) == [first.claimed.intent_id]
    assert (len(leader.claims), leader.troubles) == (1, [])


async def test_call_that_was_being_marked_when_the_leader_left_is_in_no_doubt(leader, outbox):
    """It was taken and given back, and the marks were written down in between."""
    step = await leader.step_paused_before("mark_scheduled_calls")
    leader.term.close("a shutdown")
    leader.calls.is_closed = True
    leaving = asyncio.create_task(leader.executor.leave())
    await asyncio.sleep(0.05)
    leader.store.may_go.set()
    await asyncio.gather(leaving, step)
    await leader.completion.step()
    assert (marked(outbox), len(leader.claims), leader.troubles) == ([], 0, [])


async def test_leader_that_could_not_mark_its_last_calls_unmarks_the_others(leader, outbox, stores):
    await leader.executor.step()
    assert len(marked(outbox)) == 1
    [held] = leader.calls.held
    leader.claims.let_go([held])
    await stores.ingest.enqueue_intent(NewIntent(target="bank", payload=2))
    outbox.database.execute(
        "ALTER FUNCTION leasehold.mark_calls"
        "(text, text, bigint, uuid[], integer[], integer, boolean[]) RENAME TO mark_calls_gone"
    )
    leader.executor._reconcile_at = 0.0
    step = await leader.step_paused_before("mark_scheduled_calls")
    leaving = asyncio.create_task(leader.executor.leave())
    await asyncio.sleep(0.05)
    leader.store.may_go.set()
    await asyncio.gather(leaving, step)
    assert (marked(outbox), len(leader.troubles)) == ([], 1)


async def test_no_more_is_ready_than_there_are_slots_however_many_targets_are_fast(stores, outbox):
    """All of it counts as in flight, and a leader that dies leaves a doubt about each."""
    for target in ("bank", "post", "fax"):
        terms = {"scope": "cluster", "guarantee": "keyed", "lease_name": "leader"}
        await stores.operator.publish_contract(target, terms, "ann")
        outbox.enqueue(40, target)
    lease = (await stores.executor.acquire_lease("leader", "a", 30)).lease
    leader = Leader(stores.executor, lease, "bank", "post", "fax")
    leader.calls.latency_seconds = 0.001
    ready = []
    while len(leader.calls.held) < 120:
        await leader.executor.step()
        ready.append(len(leader.executor._handing_out.numbers()))
        leader.claims.let_go(leader.claims.all()[:1])  # one by one, so that little room is left
    assert max(ready) == leader.claims.slots
    assert leader.troubles == []
