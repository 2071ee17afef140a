"""The summary of `leasehold demo` can fail: it is not a line that is always green."""

from __future__ import annotations

from uuid import uuid4

import pytest

from leasehold.cli.demo import DEFAULT_SECONDS, seconds_to_play
from leasehold.demo.audit import audit
from leasehold.demo.read import Counted


def intents(*statuses: str) -> list[Counted]:
    return [Counted(uuid4(), uuid4(), status) for status in statuses]


def once_each(given: list[Counted]) -> dict[str, int]:
    return {str(one.submission_key): 1 for one in given}


def test_as_many_effects_as_accepted_intents_are_clean():
    given = intents("accepted", "accepted")
    found = audit(given, once_each(given), 2, is_settled=True)
    assert (found.is_clean, found.intents, found.effects) == (True, 2, 2)
    assert "lost            0" in list(found.lines())


def test_key_with_two_effects_is_doubled_whatever_became_of_its_intent():
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


def test_two_effects_of_one_intent_do_not_make_up_for_the_one_that_another_lacks():
    given = intents("accepted", "accepted")
    found = audit(given, {str(given[0].submission_key): 2}, 2, is_settled=True)
    assert (found.lost, found.doubled) == (1, 1)


@pytest.mark.parametrize("status", ["pending", "in_doubt", "confirming"])
def test_unfinished_intent_is_lost_once_the_demo_has_waited_for_its_end(status):
    given = intents(status)
    waited = audit(given, once_each(given), 1, is_settled=True)
    assert (waited.lost, waited.waiting, waited.is_clean) == (1, 0, False)
    stopped = audit(given, once_each(given), 1, is_settled=False)
    assert (stopped.lost, stopped.waiting, stopped.is_clean) == (0, 1, True)


def test_intent_that_a_client_was_promised_and_nobody_has_is_lost():
    given = intents("accepted")
    found = audit(given, once_each(given), 3, is_settled=True)
    assert (found.lost, found.is_clean) == (2, False)


@pytest.mark.parametrize("status", ["held", "rejected", "exhausted", "cancelled"])
def test_end_without_an_effect_is_no_loss(status):
    found = audit(intents(status), {}, 1, is_settled=True)
    assert (found.is_clean, found.statuses[status]) == (True, 1)


def test_only_a_terminal_lets_the_demo_run_until_it_is_stopped():
    assert seconds_to_play(None, is_kill=False, is_terminal=True) is None
    assert seconds_to_play(None, is_kill=False, is_terminal=False) == DEFAULT_SECONDS
    assert seconds_to_play(None, is_kill=True, is_terminal=True) == DEFAULT_SECONDS
    assert seconds_to_play(7.0, is_kill=True, is_terminal=False) == 7.0
