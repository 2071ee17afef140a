"""Asking is not trying: a question without news spends no attempt and writes no ledger row."""

from __future__ import annotations

import json

import pytest

from tests.support.database import FOREVER
from tests.support.lease_holder import claim_streams, leased_result, take
from tests.support.outbox import result_of

pytestmark = pytest.mark.one_server


class Asker:
    """Submits one intent, then asks about it as often as told."""

    def __init__(self, outbox, scope, **terms):
        self.outbox, self.scope = outbox, scope
        outbox.publish(scope=scope, guarantee="lookup", can_look_up=True, **terms)
        [self.intent_id] = outbox.enqueue(**({"stream": "s"} if scope == "stream" else {}))
        self.hold()
        if scope == "item":
            outbox.begin(self.claims)
        else:
            self.holder.begin([self.intent_id])
        self.report("SUBMITTED")

    def hold(self):
        self.outbox.make_due()
        if self.scope == "item":
            self.claims = self.outbox.claim()
        elif self.scope == "stream":
            [self.holder] = claim_streams(self.outbox, targets=["sms"])
        elif not hasattr(self, "holder"):
            self.holder = take(self.outbox)

    def report(self, state, **fields):
        if self.scope == "item":
            [claim] = self.claims
            results = [result_of(claim, state, **fields)]
            [row] = self.outbox.call("executor", "complete_outbox_attempts", "worker-1", results)
        elif self.scope == "cluster":
            results = [leased_result(self.intent_id, state, **fields)]
            [row] = self.holder.call("record_attempts", *self.holder.fence, results)
        else:
            results = json.dumps([leased_result(self.intent_id, state, **fields)])
            rows = self.holder.call("record_stream_attempts", *self.holder.fences, results)
            [row] = [row for row in rows if row["verdict"]]
        assert row["verdict"] == "applied"
        return row

    def ask(self, state, **fields):
        self.hold()
        return self.report(state, **fields)

    @property
    def pending(self):
        return self.outbox.pending(self.intent_id)

    def submitted_seconds_ago(self, seconds):
        """Rewrite the ledger as a database owner without its triggers could."""
        self.outbox.database.execute("SET session_replication_role = replica")
        self.outbox.database.execute(
            "UPDATE leasehold.outbox_attempts SET started_at = now() - make_interval(secs => %s),"
            " finished_at = now() - make_interval(secs => %s)",
            [seconds, seconds],
        )
        self.outbox.database.execute("SET session_replication_role = origin")


@pytest.mark.parametrize("state", ["SUBMITTED", "DEFERRED"])
@pytest.mark.parametrize("scope", ["item", "cluster", "stream"])
def test_question_without_news_writes_no_row_and_spends_no_attempt(outbox, scope, state):
    asker = Asker(outbox, scope)
    for number in range(1, 31):
        asker.ask(state, retry_after_seconds=60)
        assert asker.pending["asked_count"] == number
    assert asker.pending["attempt_count"] == 1
    assert asker.pending["due_at"] > asker.pending["seen_at"]
    assert outbox.states(asker.intent_id) == ["SUBMITTED"]
    assert outbox.status(asker.intent_id) == "confirming"
    asker.ask("DISPATCHED")
    assert outbox.states(asker.intent_id) == ["SUBMITTED", "DISPATCHED"]


def test_question_about_a_doubt_without_news_leaves_it_as_it_is(outbox):
    asker = Asker(outbox, "stream")
    asker.ask("IN_DOUBT")
    for _ in range(3):
        asker.ask("DEFERRED")
    assert outbox.states(asker.intent_id) == ["SUBMITTED", "IN_DOUBT"]
    assert asker.pending["asked_count"] == 3


@pytest.mark.parametrize("state", ["SUBMITTED", "DEFERRED"])
@pytest.mark.parametrize("scope", ["item", "cluster", "stream"])
def test_submission_that_is_not_confirmed_in_time_is_in_doubt(outbox, scope, state):
    asker = Asker(outbox, scope, confirm_within_seconds=600)
    asker.ask(state, retry_after_seconds=3600)
    seen = asker.pending
    # It is asked once more when the time is over.
    assert 500 < (seen["due_at"] - seen["seen_at"]).total_seconds() < 601
    assert outbox.states(asker.intent_id) == ["SUBMITTED"]
    asker.submitted_seconds_ago(601)
    row = asker.ask(state)
    assert (row["state"], row["reason"]) == ("IN_DOUBT", "unconfirmed")
    assert outbox.states(asker.intent_id) == ["SUBMITTED", "IN_DOUBT"]
    assert asker.pending["asked_count"] == 0
    assert asker.pending["due_at"] < FOREVER


def test_news_after_the_time_for_confirmation_still_counts(outbox):
    asker = Asker(outbox, "item", confirm_within_seconds=600)
    asker.submitted_seconds_ago(601)
    asker.ask("DISPATCHED")
    assert outbox.status(asker.intent_id) == "accepted"


def test_call_that_is_submitted_again_is_an_attempt(outbox):
    """Without a lookup, an executor resubmits with the same key."""
    outbox.publish()
    [intent_id] = outbox.enqueue()
    for _ in range(3):
        outbox.make_due()
        outbox.complete(outbox.claim(), "SUBMITTED")
    assert outbox.states(intent_id) == ["SUBMITTED"] * 3


def test_dead_asker_spends_an_attempt(outbox):
    """Otherwise a lookup that kills its worker would be tried for ever."""
    asker = Asker(outbox, "item")
    asker.hold()
    outbox.expire_claims()
    assert len(outbox.call("executor", "repair_expired_leases", 10, "reaper")) == 1
    assert outbox.states(asker.intent_id) == ["SUBMITTED", "SUBMITTED"]


def test_deferred_item_without_a_call_keeps_its_budget_and_its_key_window(outbox):
    outbox.publish(scope="stream", attempts_max=2)
    [intent_id] = outbox.enqueue(stream="s")
    for _ in range(5):
        outbox.make_due()
        [holder] = claim_streams(outbox, targets=["sms"])
        assert holder.begin([intent_id]) == ["begun"]
        [following] = holder.record_next([intent_id], "DEFERRED", retry_after_seconds=60)
        assert following["stream_state"] == "waiting"
    assert outbox.states(intent_id) == []
    pending = outbox.pending(intent_id)
    assert (pending["attempt_count"], pending["asked_count"], pending["begun_at"]) == (0, 0, None)


@pytest.mark.parametrize("scope", ["item", "stream"])
def test_time_for_confirmation_does_not_shorten_the_delay_of_what_was_not_submitted(outbox, scope):
    outbox.publish(scope=scope, guarantee="lookup", confirm_within_seconds=60)
    [intent_id] = outbox.enqueue(**({"stream": "s"} if scope == "stream" else {}))
    if scope == "item":
        outbox.complete(outbox.claim(), "DEFERRED", retry_after_seconds=3600)
    else:
        [holder] = claim_streams(outbox, targets=["sms"])
        holder.record([intent_id], "DEFERRED", retry_after_seconds=3600)
    pending = outbox.pending(intent_id)
    assert (pending["due_at"] - pending["seen_at"]).total_seconds() > 3000
