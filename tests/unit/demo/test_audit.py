"""The summary of `leasehold demo` reports what is lost or doubled, and streams out of order."""

from __future__ import annotations

from uuid import uuid4

import pytest

from leasehold.cli.demo import DEFAULT_SECONDS, run_seconds
from leasehold.demo.audit import audit
from leasehold.store.demo import IntentRow


def intents(*statuses: str) -> list[IntentRow]:
    return [IntentRow(uuid4(), uuid4(), status) for status in statuses]


def once_each(given: list[IntentRow]) -> dict[str, int]:
    return {str(one.submission_key): 1 for one in given}


def test_one_effect_per_accepted_intent_is_clean():
    given = intents("accepted", "accepted")
    found = audit(given, once_each(given), 2, is_settled=True)
    assert (found.is_clean, found.intents, found.effects) == (True, 2, 2)
    assert "lost            0  intents" in list(found.lines())


def test_key_with_two_effects_is_doubled_whatever_its_status():
    given = intents("accepted", "held")
    effects = once_each(given) | {str(given[1].submission_key): 2}
    found = audit(given, effects, 2, is_settled=True)
    assert (found.doubled, found.lost, found.is_clean) == (1, 0, False)
    assert f"doubled: submission key {given[1].submission_key}, 2 effects" in list(found.lines())


def test_accepted_intent_without_an_effect_is_lost():
    given = intents("accepted", "accepted")
    found = audit(given, once_each(given[:1]), 2, is_settled=True)
    assert (found.lost, found.doubled, found.is_clean) == (1, 0, False)
    assert f"lost: intent {given[1].intent_id}, accepted" in list(found.lines())


def test_doubled_effect_does_not_hide_a_lost_intent():
    given = intents("accepted", "accepted")
    found = audit(given, {str(given[0].submission_key): 2}, 2, is_settled=True)
    assert (found.lost, found.doubled) == (1, 1)


@pytest.mark.parametrize("status", ["pending", "in_doubt", "confirming"])
def test_unfinished_intent_is_lost_if_the_demo_waited_for_its_end(status):
    given = intents(status)
    waited = audit(given, once_each(given), 1, is_settled=True)
    assert (waited.lost, waited.unfinished, waited.is_clean) == (1, 0, False)
    stopped = audit(given, once_each(given), 1, is_settled=False)
    assert (stopped.lost, stopped.unfinished, stopped.is_clean) == (0, 1, True)


def test_stream_whose_effects_are_not_in_accepted_order_is_disordered():
    first, last = (IntentRow(uuid4(), uuid4(), "accepted", "a", number) for number in (1, 3))
    rejected = IntentRow(uuid4(), uuid4(), "rejected", "a", 2)
    other = IntentRow(uuid4(), uuid4(), "accepted", "b", 1)
    given = [last, other, rejected, first]
    effects = once_each([first, other, last])
    assert audit(given, effects, 4, is_settled=True).is_clean
    effects = once_each([last, other, first])
    found = audit(given, effects, 4, is_settled=True)
    assert (found.disordered, found.is_clean) == (1, False)
    assert "disordered: stream a" in list(found.lines())


def test_committed_intent_missing_from_the_database_is_lost():
    given = intents("accepted")
    found = audit(given, once_each(given), 3, is_settled=True)
    assert (found.lost, found.is_clean) == (2, False)


@pytest.mark.parametrize("status", ["held", "rejected", "exhausted", "cancelled"])
def test_final_status_without_an_effect_is_not_lost(status):
    found = audit(intents(status), {}, 1, is_settled=True)
    assert (found.is_clean, found.statuses[status]) == (True, 1)


def test_demo_runs_until_stopped_only_in_a_terminal():
    assert run_seconds(None, is_kill=False, is_terminal=True) is None
    assert run_seconds(None, is_kill=False, is_terminal=False) == DEFAULT_SECONDS
    assert run_seconds(None, is_kill=True, is_terminal=True) == DEFAULT_SECONDS
    assert run_seconds(7.0, is_kill=True, is_terminal=False) == 7.0
