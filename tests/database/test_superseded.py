"""A result that is not of a call counts only for the attempt that its holder has read.

An operator may resolve an intent while its gateway is asked about it, because a question leaves no
mark. In scope item the claim keeps the operator off.
"""

from __future__ import annotations

import json

import pytest

from tests.support.lease_holder import StreamHolder, claim_streams, leased_result, take
from tests.support.mutants import mutate

pytestmark = pytest.mark.one_server

STATES = ["DISPATCHED", "FAILED", "RETRYABLE", "IN_DOUBT", "SUBMITTED", "DEFERRED"]
RESOLVE = "SELECT leasehold.resolve_intent(%s, %s, 'ann', 'a test')"


def resolve(outbox, intent_id, state="RETRYABLE"):
    [row] = outbox.call("operator", "resolve_intent", intent_id, state, "ann", "a test")
    return row["resolve_intent"]


@pytest.fixture(params=["stream", "cluster"])
def asking(request, outbox):
    """A holder that asks about a submitted intent. Returns both."""
    terms = {"lease_name": "leader"} if request.param == "cluster" else {}
    outbox.publish("pay", scope=request.param, guarantee="lookup", **terms)
    if request.param == "cluster":
        [intent_id] = outbox.enqueue(target="pay")
        holder = take(outbox, lease_name="leader")
    else:
        [intent_id] = outbox.enqueue(target="pay", stream="s")
        [holder] = claim_streams(outbox)
    holder.begin([intent_id])
    assert holder.record([intent_id], "SUBMITTED", retry_after_seconds=0) == ["applied"]
    return holder, intent_id


@pytest.mark.parametrize("state", STATES)
def test_answer_about_an_attempt_that_was_resolved_writes_nothing(outbox, asking, state):
    holder, intent_id = asking
    assert resolve(outbox, intent_id) == "resolved"
    assert holder.record([intent_id], state, attempt_no=2) == ["superseded"]
    assert outbox.states(intent_id) == ["SUBMITTED", "RETRYABLE"]


@pytest.mark.parametrize("state", STATES)
def test_answer_about_an_earlier_attempt_is_not_taken_for_that_of_the_new_call(
    outbox, asking, state
):
    holder, intent_id = asking
    resolve(outbox, intent_id)
    assert holder.begin([intent_id]) == ["begun"]
    assert holder.record([intent_id], state, attempt_no=2) == ["superseded"]
    assert outbox.pending(intent_id)["begun_at"] is not None
    assert holder.record([intent_id], "DISPATCHED") == ["applied"]
    assert outbox.states(intent_id) == ["SUBMITTED", "RETRYABLE", "DISPATCHED"]


@pytest.mark.parametrize("state", STATES)
def test_answer_about_the_attempt_that_is_next_is_applied(asking, state):
    holder, intent_id = asking
    assert holder.record([intent_id], state, attempt_no=2) == ["applied"]


@pytest.mark.one_server
@pytest.mark.parametrize("state", STATES)
def test_mutant_that_does_not_compare_attempts_takes_the_answer_for_the_new_call(
    outbox, database, asking, state
):
    mutate(database, "judge_outcomes", r"WHEN o\.attempt_no <> ledger\.attempt_no", "WHEN false")
    holder, intent_id = asking
    resolve(outbox, intent_id)
    holder.begin([intent_id])
    assert holder.record([intent_id], state, attempt_no=2) == ["applied"]
    pending = outbox.pending(intent_id)
    assert pending is None or pending["begun_at"] is None, "the mark of the new call is gone"


def test_superseded_answer_does_not_refuse_the_other_results(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup", pipeline_max=2)
    ids = outbox.enqueue(2, "pay", stream="s")
    [holder] = claim_streams(outbox)
    for intent_id in ids:
        holder.begin([intent_id])
        holder.record([intent_id], "SUBMITTED")
    resolve(outbox, ids[1])
    assert holder.record(ids, "DISPATCHED", attempt_no=2) == ["applied", "superseded"]


@pytest.mark.every_server
def test_answer_beside_an_operator_who_commits_then_is_superseded(database, asking):
    holder, intent_id = asking
    operator, executor = database.session("operator"), database.session("executor")
    operator.run("BEGIN")
    operator.run(RESOLVE, [intent_id, "RETRYABLE"])
    answer = json.dumps([leased_result(intent_id, "DISPATCHED", attempt_no=2)])
    record, fence = (
        ("record_stream_attempts", holder.fences)
        if isinstance(holder, StreamHolder)
        else ("record_attempts", holder.fence)
    )
    verdict = "(told.result).verdict" if record == "record_stream_attempts" else "verdict"
    call = f"SELECT {verdict} FROM leasehold.{record}(%s, %s, %s, %s) AS told"
    write = (call, [*fence, answer])
    if isinstance(holder, StreamHolder):  # the operator has its lease too
        waiting = executor.start(*write)
        waiting.assert_blocked()
        operator.run("COMMIT")
        answers = waiting.result()
    else:
        assert executor.run(*write) == [{"verdict": "locked"}]
        operator.run("COMMIT")
        answers = executor.run(*write)
    assert next(row["verdict"] for row in answers if row["verdict"]) == "superseded"


@pytest.mark.parametrize("state", ["IN_DOUBT", "SUBMITTED"])
def test_item_that_a_worker_asks_about_cannot_be_resolved_even_if_its_claim_has_expired(
    outbox, state
):
    outbox.publish(guarantee="lookup")
    [intent_id] = outbox.enqueue()
    claims = outbox.claim()
    outbox.begin(claims)
    outbox.complete(claims, state)
    outbox.make_due()
    claims = outbox.claim()
    assert resolve(outbox, intent_id) == "in_flight"
    outbox.expire_claims()
    assert resolve(outbox, intent_id) == "in_flight"
    [answer] = outbox.complete(claims, "DISPATCHED", attempt_no=2)
    assert answer["verdict"] == "lease_lost"
