"""A leader's calls are marked all together; whoever takes its lease over puts them in doubt."""

from __future__ import annotations

from typing import get_args

import pytest

from leasehold.domain.contract import Contract, Guarantee
from leasehold.domain.gateway_terms import PythonTerms
from leasehold.executor.fence import LeaseFence
from tests.support.lease_holder import take
from tests.support.sqlstates import refused

LOOKUP = {"lookup": "somewhere:lookup"}


@pytest.fixture
def leader(outbox):
    outbox.publish(scope="cluster")
    outbox.publish("careful", scope="cluster", guarantee="blind")
    return take(outbox)


def hand_out(holder, ids, mark_no=1):
    rows = holder.call("hand_out_scheduled", *holder.fence, list(ids), mark_no)
    return {row["intent_id"]: row["attempt_no"] for row in rows}


def mark(holder, numbers, mark_no=1):
    """Mark calls whose content was read ahead, by the numbers of their attempts; what is left."""
    calls = (list(numbers), list(numbers.values()))
    [row] = holder.call("mark_scheduled_calls", *holder.fence, *calls, mark_no)
    return {one: number for one, number in numbers.items() if one not in row["left_out"]}


def keep(holder, in_flight):
    holder.call("keep_scheduled_calls", *holder.fence, list(in_flight))


def successor(outbox, leader):
    outbox.expire_lease(leader.lease_name)
    return take(outbox, "holder-2")


def states(outbox, intent_id):
    return [(row["attempt_no"], row["state"], row["holder"]) for row in outbox.ledger(intent_id)]


def test_call_in_flight_at_a_takeover_leaves_a_row_and_is_made_again(outbox, leader):
    [called] = outbox.enqueue(1)
    [waiting] = outbox.enqueue(1)
    assert hand_out(leader, [called]) == {called: 1}
    heir = successor(outbox, leader)
    assert states(outbox, called) == [(1, "IN_DOUBT", "holder-1")]
    [row] = outbox.ledger(called)
    assert (row["reason"], row["lease_epoch"]) == ("lease_taken_over", leader.epoch)
    assert states(outbox, waiting) == []
    outbox.make_due()
    assert hand_out(heir, [called, waiting]) == {called: 2, waiting: 1}


def test_call_that_was_read_ahead_is_marked_and_doubted_as_if_handed_out(outbox, leader):
    [called] = outbox.enqueue(1)
    [waiting] = outbox.enqueue(1)
    assert mark(leader, {called: 1}) == {called: 1}
    [row] = outbox.call("operator", "cancel_intent", called, "ann", "a test")
    assert row["cancel_intent"] == "in_flight"
    heir = successor(outbox, leader)
    assert states(outbox, called) == [(1, "IN_DOUBT", "holder-1")]
    assert states(outbox, waiting) == []
    with refused("P7002"):
        mark(leader, {waiting: 1})
    outbox.make_due()
    assert mark(heir, {called: 1, waiting: 1}) == {waiting: 1}
    assert mark(heir, {called: 2, waiting: 1}) == {called: 2, waiting: 1}


def test_what_changed_since_it_was_read_ahead_is_left_out_and_not_marked(outbox, leader):
    ended, cancelled, retried, later, begun, careful, called = (
        *outbox.enqueue(3),
        *outbox.enqueue(1),
        *outbox.enqueue(1, "careful"),
        *outbox.enqueue(1, "careful"),
        *outbox.enqueue(1),
    )
    hand_out(leader, [ended, retried])
    leader.record([ended], "DISPATCHED")
    leader.record([retried], "RETRYABLE", retry_after_seconds=0)
    outbox.call("operator", "cancel_intent", cancelled, "ann", "a test")
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = now() + interval '1 hour'"
        " WHERE intent_id = %s",
        [later],
    )
    assert leader.begin([begun]) == ["begun"]
    asked = [ended, cancelled, retried, later, begun, careful, called]
    assert mark(leader, dict.fromkeys(asked, 1)) == {called: 1}
    successor(outbox, leader)
    doubted = {one for one in asked if states(outbox, one)[-1:] == [(1, "IN_DOUBT", "holder-1")]}
    assert doubted == {begun, called}


def test_call_whose_result_is_written_is_not_doubted(outbox, leader):
    ended, retried, cancelled = outbox.enqueue(3)
    hand_out(leader, [ended, retried, cancelled])
    assert leader.record([ended], "DISPATCHED") == ["applied"]
    assert leader.record([retried], "RETRYABLE", retry_after_seconds=60) == ["applied"]
    keep(leader, [ended, retried])
    outbox.call("operator", "cancel_intent", cancelled, "ann", "a test")
    successor(outbox, leader)
    assert [state for _, state, _ in states(outbox, ended)] == ["DISPATCHED"]
    assert [state for _, state, _ in states(outbox, retried)] == ["RETRYABLE"]
    assert [state for _, state, _ in states(outbox, cancelled)] == ["CANCELLED"]


def test_calls_of_every_batch_are_doubted(outbox, leader):
    ids = outbox.enqueue(3)
    for number, intent_id in enumerate(ids, 1):
        hand_out(leader, [intent_id], number)
    successor(outbox, leader)
    assert [len(states(outbox, intent_id)) for intent_id in ids] == [1, 1, 1]


def test_batch_takes_the_place_of_the_one_that_had_its_number(outbox, leader):
    first, second = outbox.enqueue(2)
    hand_out(leader, [first])
    hand_out(leader, [second])
    successor(outbox, leader)
    assert (states(outbox, first), len(states(outbox, second))) == ([], 1)


def test_call_that_is_marked_twice_is_doubted_once(outbox, leader):
    [intent_id] = outbox.enqueue(1)
    for number in (1, 2):
        assert hand_out(leader, [intent_id], number) == {intent_id: 1}
    successor(outbox, leader)
    assert states(outbox, intent_id) == [(1, "IN_DOUBT", "holder-1")]


def test_marks_go_with_the_leader_that_made_them(outbox, leader):
    [intent_id] = outbox.enqueue(1)
    hand_out(leader, [intent_id], 7)
    heir = successor(outbox, leader)
    assert outbox.database.execute("SELECT FROM leasehold.scheduled_calls") == []
    outbox.make_due()
    outbox.expire_lease(heir.lease_name)
    take(outbox, "holder-3")
    assert states(outbox, intent_id) == [(1, "IN_DOUBT", "holder-1")]


def test_mark_of_what_is_not_in_flight_can_be_forgotten(outbox, leader):
    first, second, third = outbox.enqueue(3)
    hand_out(leader, [first, second], 1)
    hand_out(leader, [third], 2)
    keep(leader, [second])
    successor(outbox, leader)
    assert states(outbox, first) == states(outbox, third) == []
    assert len(states(outbox, second)) == 1


def test_stale_leader_forgets_nothing(outbox, leader):
    [intent_id] = outbox.enqueue(1)
    heir = successor(outbox, leader)
    hand_out(heir, [intent_id])
    with refused("P7002"):
        keep(leader, [])
    successor(outbox, heir)
    assert states(outbox, intent_id) == [(1, "IN_DOUBT", "holder-2")]


def test_leader_that_leaves_with_nothing_in_flight_leaves_no_doubt(outbox, leader):
    ids = outbox.enqueue(3)
    hand_out(leader, ids)
    keep(leader, [])
    leader.release()
    take(outbox, "holder-2")
    assert all(states(outbox, intent_id) == [] for intent_id in ids)


def test_call_that_must_be_begun_by_itself_is_not_doubted_before_it_was(outbox, leader):
    [unbegun, begun] = outbox.enqueue(2, "careful")
    assert set(hand_out(leader, [unbegun, begun])) == {unbegun, begun}
    assert leader.begin([begun]) == ["begun"]
    successor(outbox, leader)
    assert states(outbox, unbegun) == []
    assert [state for _, state, _ in states(outbox, begun)] == ["IN_DOUBT"]


@pytest.mark.parametrize(
    ("guarantee", "key_window_seconds"),
    [*((one, None) for one in get_args(Guarantee)), ("keyed", 3600)],
)
def test_call_is_either_marked_here_or_begun_by_the_executor(
    outbox, leader, guarantee, key_window_seconds
):
    """The executor's rule of what it begins, and the database's of what it marks, fit together."""
    terms = {"guarantee": guarantee, "key_window_seconds": key_window_seconds}
    terms = {name: value for name, value in terms.items() if value is not None}
    outbox.publish("other", scope="cluster", **terms)
    [intent_id] = outbox.enqueue(1, "other")
    hand_out(leader, [intent_id])
    gateway = PythonTerms(function="somewhere:submit", **(LOOKUP if guarantee == "lookup" else {}))
    contract = Contract(target="other", scope="cluster", gateway=gateway, **terms)
    must_begin = LeaseFence(None, leader, None).must_begin(contract)
    [mark] = outbox.database.execute("SELECT intent_ids FROM leasehold.scheduled_calls")
    assert (mark["intent_ids"] == [intent_id]) is not must_begin


def test_intent_that_kills_leader_after_leader_is_held_in_the_end(outbox, leader):
    outbox.publish(scope="cluster", attempts_max=3)
    [poison] = outbox.enqueue(1)
    holder = leader
    for number in (1, 2, 3):
        assert hand_out(holder, [poison]) == {poison: number}
        outbox.expire_lease(holder.lease_name)
        holder = take(outbox, f"holder-{number + 1}")
        outbox.make_due()
    assert hand_out(holder, [poison]) == {}
    assert [state for _, state, _ in states(outbox, poison)] == ["IN_DOUBT"] * 3
    [row] = outbox.database.execute(
        "SELECT due_at = 'infinity' AS is_held FROM leasehold.outbox_pending"
    )
    assert row["is_held"]


def test_stale_leader_marks_nothing_and_gets_nothing(outbox, leader):
    [intent_id] = outbox.enqueue(1)
    heir = successor(outbox, leader)
    with refused("P7002"):
        hand_out(leader, [intent_id])
    assert hand_out(heir, [intent_id]) == {intent_id: 1}
    outbox.expire_lease(heir.lease_name)
    take(outbox, "holder-3")
    assert states(outbox, intent_id) == [(1, "IN_DOUBT", "holder-2")]


def test_intervention_waits_until_no_leader_can_be_calling(outbox, leader):
    def cancel(intent_id):
        [row] = outbox.call("operator", "cancel_intent", intent_id, "ann", "a test")
        return row["cancel_intent"]

    def resolve(intent_id):
        [row] = outbox.call("operator", "resolve_intent", intent_id, "FAILED", "ann", "a test")
        return row["resolve_intent"]

    called, waiting = outbox.enqueue(2)
    hand_out(leader, [called])
    assert (cancel(called), cancel(waiting)) == ("in_flight", "cancelled")
    heir = successor(outbox, leader)
    assert cancel(called) == "in_doubt"
    outbox.make_due()
    hand_out(heir, [called])
    assert resolve(called) == "in_flight"
    keep(heir, [])
    assert resolve(called) == "resolved"


HAND_OUT = "SELECT intent_id FROM leasehold.hand_out_scheduled(%s, %s, %s, %s, 1)"
# The same of what was read ahead.
MARK = (
    "SELECT asked.intent_id FROM leasehold.mark_scheduled_calls(%s, %s, %s, %s, '{1}', 1) AS marked"
    " CROSS JOIN unnest(%s::uuid[]) AS asked (intent_id)"
    " WHERE asked.intent_id <> ALL (marked.left_out)"
)
CANCEL = "SELECT leasehold.cancel_intent(%s, 'ann', 'a test') AS verdict"


@pytest.fixture(params=["first", "later"])
def meeting(request, outbox, leader, database):
    """An intent that one session hands out and another cancels, also where no mark is yet."""
    if request.param == "later":
        hand_out(leader, [])
    [intent_id] = outbox.enqueue(1)
    return intent_id, database.session("executor"), database.session("operator")


@pytest.fixture(params=["handed out", "marked"])
def handing(request, leader, meeting):
    """Either way to a call, with its arguments."""
    fence = [*leader.fence, [meeting[0]]]
    return (HAND_OUT, fence) if request.param == "handed out" else (MARK, [*fence, [meeting[0]]])


def test_cancellation_waits_for_the_handing_out_of_the_call(meeting, handing):
    intent_id, executor, operator = meeting
    executor.run("BEGIN")
    assert executor.run(*handing) == [{"intent_id": intent_id}]
    cancelling = operator.start(CANCEL, [intent_id])
    cancelling.assert_blocked()
    executor.run("COMMIT")
    assert cancelling.result() == [{"verdict": "in_flight"}]


def test_call_is_not_handed_out_once_its_cancellation_has_begun(meeting, handing):
    intent_id, executor, operator = meeting
    operator.run("BEGIN")
    assert operator.run(CANCEL, [intent_id]) == [{"verdict": "cancelled"}]
    handing_out = executor.start(*handing)
    handing_out.assert_blocked()
    operator.run("COMMIT")
    assert handing_out.result() == []
