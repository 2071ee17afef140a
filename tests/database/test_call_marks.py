"""A leader marks its calls batch by batch; whoever takes its lease over puts them in doubt."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

import pytest

from leasehold.domain.contract import Contract, Guarantee
from leasehold.domain.lease import Lease
from leasehold.executor.fences import LeaseFence
from leasehold.gateway.python.terms import PythonTerms
from tests.support.lease_holder import take
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
LOOKUP = {"lookup": "somewhere:lookup"}


@pytest.fixture
def leader(outbox):
    outbox.publish(scope="cluster")
    outbox.publish("careful", scope="cluster", guarantee="blind")
    return take(outbox)


def mark(holder, calls, mark_no=1, *, needs_content=True):
    """Mark calls, given with their attempt numbers or as first attempts; return those to make.

    Without `needs_content` they are calls whose content came with the due window.
    """
    numbers = calls if isinstance(calls, dict) else dict.fromkeys(calls, 1)
    given = (list(numbers), list(numbers.values()), mark_no, [needs_content] * len(numbers))
    [first, *contents] = holder.call("mark_calls", *holder.fence, *given)
    marked = {one: number for one, number in numbers.items() if one not in first["left_out"]}
    assert {row["intent_id"] for row in contents} == (set(marked) if needs_content else set())
    return marked


def unmark(holder, keep):
    holder.call("unmark_calls", *holder.fence, list(keep))


def successor(outbox, leader):
    outbox.expire_lease(leader.lease_name)
    return take(outbox, "holder-2")


def states(outbox, intent_id):
    return [(row["attempt_no"], row["state"], row["holder"]) for row in outbox.ledger(intent_id)]


def test_takeover_writes_a_ledger_row_for_a_call_in_flight_and_it_is_retried(outbox, leader):
    [called] = outbox.enqueue(1)
    [waiting] = outbox.enqueue(1)
    assert mark(leader, [called]) == {called: 1}
    heir = successor(outbox, leader)
    assert states(outbox, called) == [(1, "IN_DOUBT", "holder-1")]
    [row] = outbox.ledger(called)
    assert (row["reason"], row["lease_epoch"]) == ("lease_taken_over", leader.epoch)
    assert states(outbox, waiting) == []
    outbox.make_due()
    assert mark(heir, {called: 2, waiting: 1}) == {called: 2, waiting: 1}


def test_call_marked_without_a_request_for_content_is_put_in_doubt_too(outbox, leader):
    [called] = outbox.enqueue(1)
    [waiting] = outbox.enqueue(1)
    assert mark(leader, [called], needs_content=False) == {called: 1}
    [row] = outbox.call("operator", "cancel_intent", called, "ann", "a test")
    assert row["cancel_intent"] == "in_flight"
    heir = successor(outbox, leader)
    assert states(outbox, called) == [(1, "IN_DOUBT", "holder-1")]
    assert states(outbox, waiting) == []
    with refused("P7002"):
        mark(leader, [waiting], needs_content=False)
    outbox.make_due()
    assert mark(heir, {called: 1, waiting: 1}, needs_content=False) == {waiting: 1}
    assert mark(heir, {called: 2, waiting: 1}, needs_content=False) == {called: 2, waiting: 1}


@pytest.mark.parametrize("needs_content", [True, False])
def test_call_whose_row_has_changed_is_left_out_and_not_marked(outbox, leader, needs_content):
    ended, cancelled, retried, later, begun, careful, called = (
        *outbox.enqueue(3),
        *outbox.enqueue(1),
        *outbox.enqueue(1, "careful"),
        *outbox.enqueue(1, "careful"),
        *outbox.enqueue(1),
    )
    mark(leader, [ended, retried])
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
    # A call that must be begun by itself is returned, but never marked.
    may_be_made = [careful, called] if needs_content else [called]
    assert mark(leader, asked, needs_content=needs_content) == dict.fromkeys(may_be_made, 1)
    successor(outbox, leader)
    doubted = {one for one in asked if states(outbox, one)[-1:] == [(1, "IN_DOUBT", "holder-1")]}
    assert doubted == {begun, called}


def test_content_comes_only_for_the_calls_that_need_it(outbox, leader):
    at_hand, bare = outbox.enqueue(2)
    given = ([at_hand, bare], [1, 1], 1, [False, True])
    [first, content] = leader.call("mark_calls", *leader.fence, *given)
    assert (first["left_out"], first["intent_id"]) == ([], None)
    assert (content["intent_id"], content["payload"]) == (bare, {"number": 1})
    assert content["marked_at"] == first["marked_at"]


def test_call_whose_result_is_recorded_is_not_put_in_doubt(outbox, leader):
    ended, retried, cancelled = outbox.enqueue(3)
    mark(leader, [ended, retried, cancelled])
    assert leader.record([ended], "DISPATCHED") == ["applied"]
    assert leader.record([retried], "RETRYABLE", retry_after_seconds=60) == ["applied"]
    unmark(leader, [ended, retried])
    outbox.call("operator", "cancel_intent", cancelled, "ann", "a test")
    successor(outbox, leader)
    assert [state for _, state, _ in states(outbox, ended)] == ["DISPATCHED"]
    assert [state for _, state, _ in states(outbox, retried)] == ["RETRYABLE"]
    assert [state for _, state, _ in states(outbox, cancelled)] == ["CANCELLED"]


def test_takeover_puts_the_calls_of_every_batch_in_doubt(outbox, leader):
    ids = outbox.enqueue(3)
    for number, intent_id in enumerate(ids, 1):
        mark(leader, [intent_id], number)
    successor(outbox, leader)
    assert [len(states(outbox, intent_id)) for intent_id in ids] == [1, 1, 1]


def test_batch_replaces_the_one_marked_under_the_same_number(outbox, leader):
    first, second = outbox.enqueue(2)
    mark(leader, [first])
    mark(leader, [second])
    successor(outbox, leader)
    assert (states(outbox, first), len(states(outbox, second))) == ([], 1)


def test_call_that_is_marked_twice_is_put_in_doubt_once(outbox, leader):
    [intent_id] = outbox.enqueue(1)
    for number in (1, 2):
        assert mark(leader, [intent_id], number) == {intent_id: 1}
    successor(outbox, leader)
    assert states(outbox, intent_id) == [(1, "IN_DOUBT", "holder-1")]


def test_takeover_removes_the_marks_of_the_previous_leader(outbox, leader):
    [intent_id] = outbox.enqueue(1)
    mark(leader, [intent_id], 7)
    heir = successor(outbox, leader)
    assert outbox.database.execute("SELECT FROM leasehold.call_marks") == []
    outbox.make_due()
    outbox.expire_lease(heir.lease_name)
    take(outbox, "holder-3")
    assert states(outbox, intent_id) == [(1, "IN_DOUBT", "holder-1")]


def test_unmarking_keeps_only_the_named_calls_in_doubt(outbox, leader):
    first, second, third = outbox.enqueue(3)
    mark(leader, [first, second], 1)
    mark(leader, [third], 2)
    unmark(leader, [second])
    successor(outbox, leader)
    assert states(outbox, first) == states(outbox, third) == []
    assert len(states(outbox, second)) == 1


def test_stale_leader_cannot_unmark_calls_of_its_successor(outbox, leader):
    [intent_id] = outbox.enqueue(1)
    heir = successor(outbox, leader)
    mark(heir, [intent_id])
    with refused("P7002"):
        unmark(leader, [])
    successor(outbox, heir)
    assert states(outbox, intent_id) == [(1, "IN_DOUBT", "holder-2")]


def test_leader_that_unmarks_everything_leaves_no_call_in_doubt(outbox, leader):
    ids = outbox.enqueue(3)
    mark(leader, ids)
    unmark(leader, [])
    leader.release()
    take(outbox, "holder-2")
    assert all(states(outbox, intent_id) == [] for intent_id in ids)


def test_call_that_must_be_begun_is_in_doubt_only_after_it_was_begun(outbox, leader):
    [unbegun, begun] = outbox.enqueue(2, "careful")
    assert set(mark(leader, [unbegun, begun])) == {unbegun, begun}
    assert leader.begin([begun]) == ["begun"]
    successor(outbox, leader)
    assert states(outbox, unbegun) == []
    assert [state for _, state, _ in states(outbox, begun)] == ["IN_DOUBT"]


@pytest.mark.parametrize(
    ("guarantee", "key_window_seconds"),
    [*((one, None) for one in get_args(Guarantee)), ("keyed", 3600)],
)
def test_call_is_either_marked_or_begun_by_the_executor(
    outbox, leader, guarantee, key_window_seconds
):
    """The executor begins exactly the calls that the database does not mark."""
    terms = {"guarantee": guarantee, "key_window_seconds": key_window_seconds}
    terms = {name: value for name, value in terms.items() if value is not None}
    outbox.publish("other", scope="cluster", **terms)
    [intent_id] = outbox.enqueue(1, "other")
    mark(leader, [intent_id])
    gateway = PythonTerms(function="somewhere:submit", **(LOOKUP if guarantee == "lookup" else {}))
    contract = Contract(target="other", scope="cluster", gateway=gateway, **terms)
    lease = Lease(
        name=leader.lease_name,
        holder_id=leader.name,
        epoch=leader.epoch,
        expires_at=LONG_AGO,
        grace_expires_at=LONG_AGO,
    )
    must_begin = LeaseFence(None, lease).must_begin(contract)
    [row] = outbox.database.execute("SELECT intent_ids FROM leasehold.call_marks")
    assert (row["intent_ids"] == [intent_id]) is not must_begin


def test_intent_that_kills_every_leader_ends_up_held(outbox, leader):
    outbox.publish(scope="cluster", attempts_max=3)
    [poison] = outbox.enqueue(1)
    holder = leader
    for number in (1, 2, 3):
        assert mark(holder, {poison: number}) == {poison: number}
        outbox.expire_lease(holder.lease_name)
        holder = take(outbox, f"holder-{number + 1}")
        outbox.make_due()
    assert mark(holder, {poison: 4}) == {}
    assert [state for _, state, _ in states(outbox, poison)] == ["IN_DOUBT"] * 3
    [row] = outbox.database.execute(
        "SELECT due_at = 'infinity' AS is_held FROM leasehold.outbox_pending"
    )
    assert row["is_held"]


def test_stale_leader_cannot_mark_calls(outbox, leader):
    [intent_id] = outbox.enqueue(1)
    heir = successor(outbox, leader)
    with refused("P7002"):
        mark(leader, [intent_id])
    assert mark(heir, [intent_id]) == {intent_id: 1}
    outbox.expire_lease(heir.lease_name)
    take(outbox, "holder-3")
    assert states(outbox, intent_id) == [(1, "IN_DOUBT", "holder-2")]


def test_operator_cannot_change_an_intent_while_its_call_is_marked(outbox, leader):
    def cancel(intent_id):
        [row] = outbox.call("operator", "cancel_intent", intent_id, "ann", "a test")
        return row["cancel_intent"]

    def resolve(intent_id):
        [row] = outbox.call("operator", "resolve_intent", intent_id, "FAILED", "ann", "a test")
        return row["resolve_intent"]

    called, waiting = outbox.enqueue(2)
    mark(leader, [called])
    assert (cancel(called), cancel(waiting)) == ("in_flight", "cancelled")
    heir = successor(outbox, leader)
    assert cancel(called) == "in_doubt"
    outbox.make_due()
    assert mark(heir, {called: 2}) == {called: 2}
    assert resolve(called) == "in_flight"
    unmark(heir, [])
    assert resolve(called) == "resolved"


MARK = (
    "SELECT asked.intent_id"
    "  FROM leasehold.mark_calls(%s, %s, %s, %s, '{1}', 1, ARRAY[%s]) AS marked"
    " CROSS JOIN unnest(%s::uuid[]) AS asked (intent_id)"
    " WHERE asked.intent_id <> ALL (marked.left_out)"
)
CANCEL = "SELECT leasehold.cancel_intent(%s, 'ann', 'a test') AS verdict"


@pytest.fixture(params=["first", "later"])
def meeting(request, outbox, leader, database):
    """Return an intent that one session marks while another cancels it."""
    if request.param == "later":
        mark(leader, [])
    [intent_id] = outbox.enqueue(1)
    return intent_id, database.session("executor"), database.session("operator")


@pytest.fixture(params=["with content", "without content"])
def marking(request, leader, meeting):
    """Return the statement and arguments of each way to mark a call."""
    ids = [meeting[0]]
    return MARK, [*leader.fence, ids, request.param == "without content", ids]


@pytest.mark.every_server
def test_cancellation_waits_until_the_call_is_marked(meeting, marking):
    intent_id, executor, operator = meeting
    executor.run("BEGIN")
    assert executor.run(*marking) == [{"intent_id": intent_id}]
    cancelling = operator.start(CANCEL, [intent_id])
    cancelling.assert_blocked()
    executor.run("COMMIT")
    assert cancelling.result() == [{"verdict": "in_flight"}]


@pytest.mark.every_server
def test_call_is_not_marked_once_its_cancellation_has_begun(meeting, marking):
    intent_id, executor, operator = meeting
    operator.run("BEGIN")
    assert operator.run(CANCEL, [intent_id]) == [{"verdict": "cancelled"}]
    waiting = executor.start(*marking)
    waiting.assert_blocked()
    operator.run("COMMIT")
    assert waiting.result() == []
