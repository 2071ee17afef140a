"""The observer: what it is told, in which order, and that it can harm nobody."""

from __future__ import annotations

import asyncio
import sys
import threading
import types

import pytest

from leasehold import ObservedIntent, Observer
from leasehold.domain.contract import Contract
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import AttemptState
from leasehold.domain.lease import TrustWindow, trust_clock
from leasehold.domain.outcome import Accepted, NotFound, Rejected, Retryable, Submitted, Unknown
from leasehold.domain.verdict import RecordVerdict
from leasehold.executor import observer as observer_module
from leasehold.executor.completer import Completer
from leasehold.executor.fences import GIVEN_BACK_MAX, Written
from leasehold.executor.item import claimed_items
from leasehold.executor.limits import Gate
from leasehold.executor.observer import ObserverThread, find_observer
from leasehold.executor.runner import Runner
from leasehold.executor.slots import SlotPool, Slots
from leasehold.executor.targets import Served
from leasehold.gateway.python.terms import PythonTerms
from leasehold.observe.metrics import Metrics
from leasehold.store.rows import Recorded
from tests.support.claimed_item import claim_of

SUBMITTED, IN_DOUBT = AttemptState.SUBMITTED, AttemptState.IN_DOUBT
DISPATCHED, FAILED, RETRYABLE = (
    AttemptState.DISPATCHED,
    AttemptState.FAILED,
    AttemptState.RETRYABLE,
)


class Fence:
    """A fence without a database: results become what `states` says, by their number."""

    keeps_slot = False
    given_back_max = GIVEN_BACK_MAX
    holder_id = "worker-1"

    def __init__(self, states):
        self._states = states

    def must_begin(self, contract):
        del contract
        return False

    async def record(self, items):
        recorded = [
            Recorded(
                one.claimed.intent_id,
                RecordVerdict.APPLIED,
                1,
                state,
                "a reason",
                None,
                is_held=False,
            )
            for one in items
            if (state := self._states.get(one.intent_no)) is not None
        ]
        return Written(recorded)

    async def give_back(self, items, delay_seconds):
        del items, delay_seconds
        return Written()


class Notes(Observer):
    """Notes what it is told, as (method, number of the intent, the rest)."""

    def __init__(self):
        self.told = []
        self.intents = []

    def begun(self, intent):
        self.intents.append(intent)
        self.told.append(("begun", intent.intent_id.int))

    def answered(self, intent, outcome):
        self.told.append(("answered", intent.intent_id.int, type(outcome)))

    def unknown(self, intent, outcome):
        self.told.append(("unknown", intent.intent_id.int, outcome.reason))

    def terminal(self, intent, state, reason):
        self.told.append(("terminal", intent.intent_id.int, state, reason))


class Gateway:
    def __init__(self, submit, lookup):
        self.submit, self.lookup = submit, lookup


class Targets:
    def __init__(self, gateway):
        contract = Contract(
            target="sms",
            version=1,
            scope="item",
            guarantee="lookup",
            gateway=PythonTerms(function="a:b", lookup="a:c"),
        )
        self._served = Served(contract=contract, gateway=gateway, lease_seconds=30)
        self._gate = Gate(10, None)

    async def of(self, target, version):
        del target, version
        return self._served

    def observe(self, *_):
        pass


class Setup:
    """A runner and a completer whose gateway answers each number with what `answers` says."""

    def __init__(self, answers, states=None, notes=None):
        async def answer(submission):
            outcome = answers[submission.intent_id.int]
            if isinstance(outcome, Exception):
                raise outcome
            if outcome is None:
                self.calling.set()
                await asyncio.Event().wait()
            return outcome

        self.notes, self.metrics, self.calling = notes or Notes(), Metrics(), asyncio.Event()
        self.slots, self.fence = Slots("w", SlotPool(10)), Fence(states or {})
        self.thread = ObserverThread(self.notes, self.metrics, "worker-1")
        self.thread.start()
        given = {"on_error": _fail, "observer": self.thread}
        self.completer = Completer(self.slots, self.metrics, **given)
        targets = Targets(Gateway(answer, answer))
        self.runner = Runner(self.slots, targets, self.completer, self.metrics, **given)

    def start(self, number, state=None):
        claim = claim_of(number)._replace(last_state=state, reference="r", stream="s1")
        trust = TrustWindow.counted_from(trust_clock(), 30.0)
        [item] = claimed_items([claim], self.fence, trust, 30.0, trust_clock())
        self.slots.take([item])
        self.runner.start([item])
        return item

    async def told(self):
        async with asyncio.timeout(10):
            while len(self.slots):
                await asyncio.sleep(0.002)
                await self.completer.step()
        await self.thread.close(10)
        return self.notes.told


def _fail(error):
    raise error


def count(metrics, name):
    return metrics.registry.get_sample_value(f"leasehold_{name}_total", {"worker_id": ""})


async def test_observer_is_told_begun_then_answered_then_terminal():
    setup = Setup({7: Accepted()})
    setup.start(7)
    assert await setup.told() == [
        ("begun", 7),
        ("answered", 7, Accepted),
        ("terminal", 7, DISPATCHED, None),
    ]
    [intent] = setup.notes.intents
    claim = claim_of(7)
    assert intent == ObservedIntent(
        claim.intent_id, "sms", "s1", 1, claim.submission_key, "worker-1", intent.trace_id
    )


@pytest.mark.parametrize(
    ("outcome", "state", "expected"),
    [
        (Rejected(), FAILED, [("answered", 7, Rejected), ("terminal", 7, FAILED, "a reason")]),
        (Retryable(), RETRYABLE, [("answered", 7, Retryable)]),
        (Retryable(), FAILED, [("answered", 7, Retryable), ("terminal", 7, FAILED, "a reason")]),
        (Submitted(reference="r", ask_after_seconds=1), SUBMITTED, [("answered", 7, Submitted)]),
        (Unknown(reason="timeout"), IN_DOUBT, [("unknown", 7, "timeout")]),
        (ValueError(), IN_DOUBT, [("unknown", 7, "exception")]),
    ],
    ids=["rejected", "retryable", "exhausted", "submitted", "unknown", "raised"],
)
async def test_observer_is_told_the_outcome_and_only_terminal_rows(outcome, state, expected):
    setup = Setup({7: outcome}, {7: state})
    setup.start(7)
    assert await setup.told() == [("begun", 7), *expected]


@pytest.mark.parametrize(
    ("last_state", "answer", "state", "expected"),
    [
        (SUBMITTED, Accepted(), DISPATCHED, [("answered", 7, Accepted)]),
        (SUBMITTED, NotFound(), IN_DOUBT, [("unknown", 7, "not_found_by_lookup")]),
        (SUBMITTED, Submitted(reference="r", ask_after_seconds=1), SUBMITTED, []),
        (SUBMITTED, Unknown(), SUBMITTED, []),
        (IN_DOUBT, Unknown(), None, []),
        (IN_DOUBT, NotFound(), RETRYABLE, [("answered", 7, Retryable)]),
    ],
)
async def test_observer_is_told_of_a_lookup_only_if_it_brings_news(
    last_state, answer, state, expected
):
    setup = Setup({7: answer}, {7: state})
    setup.start(7, last_state)
    told = [one for one in await setup.told() if one[0] != "terminal"]
    assert told == expected


async def test_observer_is_told_once_that_an_aborted_call_is_unknown():
    setup = Setup({7: None}, {7: IN_DOUBT})
    item = setup.start(7)
    async with asyncio.timeout(10):
        await setup.calling.wait()
    setup.runner.abort(item)
    assert await setup.told() == [("begun", 7), ("unknown", 7, "aborted")]


async def test_observer_that_raises_is_counted_and_harms_nobody(capsys):
    class Broken(Notes):
        def begun(self, intent):
            super().begun(intent)
            raise SystemExit(str(intent))

    setup = Setup({7: Accepted(), 8: Accepted()}, notes=Broken())
    setup.start(7)
    setup.start(8)
    told = await setup.told()
    assert [one[:2] for one in told if one[0] == "terminal"] == [("terminal", 7), ("terminal", 8)]
    assert count(setup.metrics, "observer_failures") == 2
    assert "intent_id=" not in capsys.readouterr().err, "the message of an error is not logged"


async def test_observer_that_blocks_loses_events_and_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(observer_module, "QUEUE_MAX", 3)
    blocked, entered = threading.Event(), threading.Event()

    class Blocking(Notes):
        def begun(self, intent):
            super().begun(intent)
            entered.set()
            blocked.wait(30)

    setup = Setup(dict.fromkeys(range(1, 10), Accepted()), notes=Blocking())
    setup.start(1)
    async with asyncio.timeout(10):
        while not entered.is_set():  # noqa: ASYNC110 (an event of a thread)
            await asyncio.sleep(0.002)
    for number in range(2, 10):
        setup.start(number)
    async with asyncio.timeout(10):
        while len(setup.slots):
            await asyncio.sleep(0.002)
            await setup.completer.step()
    await setup.thread.close(0.01)
    # 27 events: one is being told, three wait, and those are lost when the instance stops.
    assert count(setup.metrics, "observations_dropped") == 26
    blocked.set()


def test_observer_may_implement_only_some_methods(monkeypatch):
    class Partial(Observer):
        def terminal(self, intent, state, reason):
            del intent, state, reason

    module = types.ModuleType("shop_watch")
    module.Partial, module.partial = Partial, Partial()
    monkeypatch.setitem(sys.modules, "shop_watch", module)
    assert isinstance(find_observer(None, "shop_watch:Partial", (), {}), Partial)
    assert find_observer(None, "shop_watch:partial", (), {}) is module.partial
    given = Partial()
    assert find_observer(given, "shop_watch:partial", (), {}) is given
    assert find_observer(None, None, (), {}) is None


class AsyncObserver(Observer):
    async def begun(self, intent):
        del intent


class HalfObserver:
    def begun(self, intent):
        del intent


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no_such_module:x", "ModuleNotFoundError.*is it in --app-dir"),
        (f"{__name__}:nothing", "AttributeError"),
        (f"{__name__}:HalfObserver", "has no answered and no unknown and no terminal"),
        (f"{__name__}:AsyncObserver", "async methods"),
    ],
)
def test_observer_that_cannot_work_is_refused_with_the_reason(path, problem):
    with pytest.raises(InvalidArgument, match=problem):
        find_observer(None, path, (), {})


def test_reason_of_an_observer_that_cannot_be_loaded_hides_secrets(tmp_path, monkeypatch):
    (tmp_path / "leaky_watch.py").write_text("raise ValueError('login with sw0rdfish')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidArgument, match="ValueError") as caught:
        find_observer(None, "leaky_watch:x", ["sw0rdfish"], {})
    assert "sw0rdfish" not in str(caught.value)


@pytest.mark.parametrize(
    "module", ["import sys; sys.exit()", "class x:\n def __init__(self): exit()"]
)
def test_observer_whose_module_exits_is_refused_with_the_reason(tmp_path, monkeypatch, module):
    """A script without a guard for its main part would end the worker as if all were well."""
    name = f"leaving_watch_{len(module)}"
    (tmp_path / f"{name}.py").write_text(f"{module}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidArgument, match="SystemExit"):
        find_observer(None, f"{name}:x", [], {})
