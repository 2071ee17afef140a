"""What a terminal failure does to its stream, what operators do about it, and batches."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from tests.support.database import FOREVER
from tests.support.lease_holder import claim_streams, leased_result
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

PAUSED = ("target", "stream", "head", "state", "reason", "waiting")


@pytest.fixture
def streams(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    return outbox


def heads_of(rows):
    return [row["intent_id"] for row in rows if row["intent_id"]]


def claimed_heads(outbox, name="holder-2"):
    return [heads_of(one.heads) for one in claim_streams(outbox, name)]


def fail_the_head(outbox, stream="s", **fields):
    """Claim the stream and let its head fail; return what the holder is told."""
    [holder] = [one for one in claim_streams(outbox) if one.stream == stream]
    [head] = heads_of(holder.heads)
    assert holder.begin([head]) == ["begun"]
    [row] = holder.record_next([head], "FAILED", **fields)
    return head, row


def blocked(database):
    return database.execute(
        "SELECT target, stream, head, state, reason, waiting, paused_by, paused_for, blocked_since"
        "  FROM leasehold.blocked_streams ORDER BY target, stream"
    )


def test_longest_pause_counts_if_several_intents_of_a_stream_fail_together(outbox, database):
    outbox.publish("pay", scope="stream", on_failure="block_for", block_seconds=60)
    [first] = outbox.enqueue(target="pay", stream="s")
    outbox.publish("pay", scope="stream", on_failure="block")
    [second] = outbox.enqueue(target="pay", stream="s")
    [holder] = claim_streams(outbox)
    assert holder.record([first, second], "FAILED", reason="rejected") == ["applied"] * 2
    [lease] = database.execute("SELECT paused_until FROM leasehold.leases")
    assert lease["paused_until"] == FOREVER
    assert reasons(outbox) == [("on_failure", first), ("on_failure", second)]


def test_failed_head_pauses_its_stream_and_no_other_until_a_person_resumes_it(streams, database):
    ids = streams.enqueue(3, "pay", stream="s")
    failed, row = fail_the_head(streams, reason="no such account")
    assert (row["stream_state"], row["wait_seconds"], row["is_held"]) == ("paused", None, False)
    [other] = streams.enqueue(target="pay", stream="t")
    [late] = streams.enqueue(target="pay", stream="s")
    assert claimed_heads(streams) == [[other]]
    [seen] = blocked(database)
    assert {name: seen[name] for name in PAUSED} == {
        "target": "pay",
        "stream": "s",
        "head": ids[1],
        "state": "paused",
        "reason": "no such account",
        "waiting": 2,
    }
    assert (seen["paused_by"], seen["paused_for"]) == ("on_failure", failed)
    assert resume(streams, paused_for=failed) == "resumed"
    assert blocked(database) == []
    [holder] = claim_streams(streams, "holder-3")
    assert heads_of(holder.heads) == [ids[1]]
    for head, following in ((ids[1], [ids[2]]), (ids[2], [late]), (late, [])):
        assert holder.begin([head]) == ["begun"]
        assert heads_of(holder.record_next([head], "DISPATCHED")) == following
    [noted] = database.execute("SELECT * FROM leasehold.stream_interventions")
    assert (noted["action"], noted["operator"], noted["intent_id"]) == ("resume", "ada", failed)


def resume(outbox, stream="s", *, operator="ada", paused_by=None, paused_for=None):
    arguments = ("pay", stream, operator, "it is settled", paused_by, paused_for)
    [row] = outbox.call("operator", "resume_stream", *arguments)
    return row["resume_stream"]


def pause(outbox, stream="s", seconds=None, operator="ada"):
    [row] = outbox.call("operator", "pause_stream", "pay", stream, operator, "wait", seconds)
    return row["pause_stream"]


def reasons(outbox, stream="s"):
    """Return for what the stream stands still, as a reader sees it: who and which intent."""
    [row] = outbox.call("readonly", "read_stream", "pay", stream)
    return [
        (one["paused_by"], one["paused_for"] and UUID(one["paused_for"])) for one in row["pauses"]
    ]


def skip(outbox, intent_id, stream="s"):
    [row] = outbox.call("operator", "skip_stream_head", "pay", stream, intent_id, "ada", "not now")
    return row["skip_stream_head"]


def test_row_enqueued_into_an_empty_paused_stream_waits_for_a_person(streams):
    streams.enqueue(target="pay", stream="s")
    failed, _ = fail_the_head(streams)
    [late] = streams.enqueue(target="pay", stream="s")
    assert not streams.pending(late)["is_claimable"]
    assert claimed_heads(streams) == []
    assert resume(streams, paused_for=failed) == "resumed"
    assert claimed_heads(streams) == [[late]]


def test_stream_that_continues_goes_on_with_the_next_row(outbox):
    outbox.publish("pay", scope="stream", on_failure="continue")
    ids = outbox.enqueue(2, "pay", stream="s")
    _, row = fail_the_head(outbox)
    assert (row["stream_state"], row["intent_id"]) == ("ready", ids[1])


def let_pauses_pass(database, seconds):
    """Let time pass for pauses, and for rows that they have moved."""
    database.owner_execute(
        "UPDATE leasehold.outbox_pending SET due_at = due_at - make_interval(secs => %s)"
        " WHERE due_at > clock_timestamp()",
        [seconds],
    )
    for table in ("leases", "stream_pauses"):
        database.owner_execute(
            f"UPDATE leasehold.{table} SET"
            " paused_since = paused_since - make_interval(secs => %s),"
            " paused_until = paused_until - make_interval(secs => %s)",
            [seconds, seconds],
        )


@pytest.mark.parametrize("is_empty", [True, False])
def test_stream_that_blocks_for_a_time_goes_on_after_it(outbox, database, is_empty):
    outbox.publish("pay", scope="stream", on_failure="block_for", block_seconds=600)
    ids = outbox.enqueue(1 if is_empty else 2, "pay", stream="s")
    _, row = fail_the_head(outbox)
    assert row["stream_state"] == "paused"
    assert 500 < row["wait_seconds"] <= 600
    ids += outbox.enqueue(1, "pay", stream="s")
    assert claimed_heads(outbox) == []
    assert [seen["state"] for seen in blocked(database)] == ["paused"]
    let_pauses_pass(database, 600)
    assert claimed_heads(outbox) == [[ids[1]]]
    [lease] = database.execute("SELECT paused_since, paused_until FROM leasehold.leases")
    assert lease == {"paused_since": None, "paused_until": None}


@pytest.mark.parametrize("how", ["resolve", "cancel", "skip"])
def test_end_that_an_operator_decides_does_not_pause_the_stream(streams, how):
    ids = streams.enqueue(2, "pay", stream="s")
    if how == "resolve":
        [holder] = claim_streams(streams)
        holder.begin(ids[:1])
        holder.record_next(ids[:1], "IN_DOUBT")
        assert skip(streams, ids[0]) == "in_doubt"
        streams.call("operator", "resolve_intent", ids[0], "FAILED", "ada", "it did not arrive")
    elif how == "cancel":
        streams.call("operator", "cancel_intent", ids[0], "ada", "not wanted")
    else:
        assert skip(streams, ids[0]) == "skipped"
        [row] = streams.ledger(ids[0])
        assert (row["state"], row["reason"], row["holder"]) == (
            "CANCELLED",
            "skipped_by_operator",
            "ada",
        )
    assert claimed_heads(streams) == [[ids[1]]]


def test_paused_stream_begins_nothing_and_records_what_was_begun(streams, database):
    first, second = streams.enqueue(2, "pay", stream="s")
    [holder] = claim_streams(streams)
    assert holder.begin([first]) == ["begun"]
    assert pause(streams) == "paused"
    assert skip(streams, first) == "in_flight"
    [row] = holder.record_next([first], "DISPATCHED")
    assert (row["stream_state"], row["is_held"]) == ("paused", False)
    assert claimed_heads(streams) == []
    [seen] = blocked(database)
    assert (seen["head"], seen["reason"], seen["paused_by"]) == (second, "wait", "ada")
    # A pause for a time takes the place of the other one.
    assert pause(streams, seconds=600) == "paused"
    assert claimed_heads(streams) == []
    assert resume(streams) == "resumed"
    assert resume(streams) == "not_paused"
    [holder] = claim_streams(streams)
    assert pause(streams) == "paused"
    assert holder.begin([second]) == ["paused"]
    actions = database.execute(
        "SELECT action FROM leasehold.stream_interventions ORDER BY intervention_id"
    )
    assert [row["action"] for row in actions] == ["pause", "pause", "resume", "pause"]


def test_paused_head_that_is_skipped_leaves_the_stream_paused(streams):
    first, second = streams.enqueue(2, "pay", stream="s")
    assert pause(streams) == "paused"
    assert skip(streams, second) == "not_head"
    assert skip(streams, first) == "skipped_paused"
    assert skip(streams, first) == "already_terminal"
    assert claimed_heads(streams) == []
    assert resume(streams) == "resumed"
    assert claimed_heads(streams) == [[second]]


def test_intent_of_another_stream_is_not_found_when_it_is_skipped(streams):
    """The verdict would tell of an intent that the operator may not see."""
    streams.publish("sms")
    first, second = streams.enqueue(2, "pay", stream="other")
    others = [first, second, *streams.enqueue(1, "sms")]
    streams.enqueue(target="pay", stream="s")
    assert [skip(streams, one) for one in others] == ["not_found"] * 3
    assert skip(streams, first, "other") == "skipped"
    assert skip(streams, first) == "not_found"
    assert skip(streams, first, "other") == "already_terminal"


def test_operator_who_names_an_unknown_stream_or_gives_no_reason_is_told(streams):
    streams.enqueue(target="pay", stream="s")
    assert pause(streams, "unknown") == resume(streams, "unknown") == "not_found"
    for call in (
        ("pause_stream", "pay", "s", "ada", ""),
        ("pause_stream", "pay", "s", "ada", "why", -1),
        ("resume_stream", "pay", "s", "", "why"),
        ("skip_stream_head", "pay", "s", None, "ada", "why"),
        ("pause_stream", None, "s", "ada", "why"),
        ("resume_stream", "pay", None, "ada", "why"),
    ):
        with refused("22023"):
            streams.call("operator", *call)


@pytest.mark.usefixtures("streams")
def test_intervention_cannot_be_rewritten(outbox, database):
    outbox.enqueue(target="pay", stream="s")
    pause(outbox)
    for statement in ("UPDATE %s SET note = 'x'", "DELETE FROM %s", "TRUNCATE %s"):
        with refused("P0001"):
            database.owner_execute(statement % "leasehold.stream_interventions")


def test_tried_heads_are_shown_as_blocked_and_their_followers_are_counted(streams, database):
    states = {"doubt": "IN_DOUBT", "retry": "RETRYABLE", "sent": "SUBMITTED"}
    heads = {name: streams.enqueue(3, "pay", stream=name)[0] for name in [*states, "fresh"]}
    for holder in claim_streams(streams):
        if holder.stream in states:
            holder.begin([heads[holder.stream]])
            holder.record_next([heads[holder.stream]], states[holder.stream], code="503")
    seen = {row["stream"]: row for row in blocked(database)}
    assert {name: row["state"] for name, row in seen.items()} == {
        "doubt": "in_doubt",
        "retry": "retrying",
        "sent": "confirming",
    }
    for name, row in seen.items():
        assert (row["head"], row["waiting"], row["reason"]) == (heads[name], 2, "503")
        assert row["blocked_since"] is not None


async def test_reader_gets_blocked_streams_in_pages(stores, outbox):
    for target in ("pay", "sms"):
        outbox.publish(target, scope="stream")
        for stream in ("a", "b"):
            outbox.enqueue(target=target, stream=stream)
            verdict = await stores.operator.pause_stream(target, stream, "ada", "wait")
            assert verdict == "paused"
    assert await stores.operator.resume_stream("sms", "b", "ada", "go on") == "resumed"
    first = await stores.readonly.read_blocked_streams(None, None, 2)
    assert [(one.target, one.stream) for one in first] == [("pay", "a"), ("pay", "b")]
    assert (first[0].state, first[0].paused_until, first[0].waiting) == ("paused", None, 0)
    rest = await stores.readonly.read_blocked_streams(None, ("pay", "b"), 2)
    assert [(one.target, one.stream) for one in rest] == [("sms", "a")]
    of_sms = await stores.readonly.read_blocked_streams(["sms"], None, 10)
    assert of_sms == rest
    head = of_sms[0].head
    verdict = await stores.operator.skip_stream_head("sms", "a", head, "ada", "no")
    assert verdict == "skipped_paused"


# Batches.


@pytest.fixture
def batches(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup", batch_max=3)
    return outbox


def test_batch_has_consecutive_due_heads_under_one_contract(batches):
    ids = batches.enqueue(2, "pay", stream="s")
    batches.publish("pay", scope="stream", guarantee="lookup", batch_max=4)
    other = batches.enqueue(3, "pay", stream="s")
    [delayed] = batches.enqueue(target="pay", stream="s", delay_seconds=600)
    [holder] = claim_streams(batches)
    assert heads_of(holder.heads) == ids
    assert holder.begin([*ids, other[0]]) == ["begun", "begun", "out_of_order"]
    assert heads_of(holder.record_next(ids, "DISPATCHED")) == other
    assert holder.begin([*other, delayed]) == ["begun"] * 3 + ["not_due"]


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_prefix_of_a_batch_may_be_accepted_and_the_rest_is_next(batches, accepted):
    ids = batches.enqueue(4, "pay", stream="s")
    [holder] = claim_streams(batches)
    assert heads_of(holder.heads) == ids[:3]
    assert holder.begin(ids[:3]) == ["begun"] * 3
    states = ["DISPATCHED"] * accepted + ["DEFERRED"] * (3 - accepted)
    results = [
        leased_result(one, state, retry_after_seconds=0)
        for one, state in zip(ids, states, strict=False)
    ]
    rows = holder.call("record_stream_attempts", *holder.fences, json.dumps(results))
    following = ids[accepted : accepted + 3]
    assert heads_of(row for row in rows if not row["verdict"]) == following
    assert [batches.states(one) for one in ids[:accepted]] == [["DISPATCHED"]] * accepted
    assert [batches.states(one) for one in ids[accepted:]] == [[]] * (4 - accepted)


def test_batch_of_a_dead_holder_is_in_doubt_as_a_whole(batches):
    ids = batches.enqueue(4, "pay", stream="s")
    [holder] = claim_streams(batches)
    holder.begin(ids[:3])
    batches.expire_lease(holder.lease_name, grace=False)
    assert claim_streams(batches, "holder-2") == []
    assert [batches.states(one) for one in ids] == [[]] * 4
    batches.expire_lease(holder.lease_name)
    claim_streams(batches, "holder-2")
    assert [batches.states(one) for one in ids] == [["IN_DOUBT"]] * 3 + [[]]
    batches.make_due()
    [successor] = claim_streams(batches, "holder-3")
    # They are asked about together, and not mixed with rows to be called.
    assert heads_of(successor.heads) == ids[:3]


def test_stream_with_a_part_of_a_batch_in_flight_is_not_drained_or_freed(batches):
    ids = batches.enqueue(3, "pay", stream="s")
    [holder] = claim_streams(batches)
    holder.begin(ids)
    [row] = holder.record_next(ids[:1], "RETRYABLE")
    assert (row["stream_state"], row["is_held"]) == ("begun", True)
    [row] = holder.record_next(ids[1:2], "DISPATCHED")
    assert (row["stream_state"], row["is_held"]) == ("begun", True)
    [row] = holder.record_next(ids[2:], "DISPATCHED")
    assert (row["stream_state"], row["is_held"]) == ("waiting", False)


def test_head_given_back_unsent_spends_no_attempt(batches):
    ids = batches.enqueue(2, "pay", stream="s")
    [holder] = claim_streams(batches)
    holder.begin(ids)
    assert holder.release(unsent=ids)
    assert claimed_heads(batches) == [ids]
    assert [batches.states(one) for one in ids] == [[], []]


def test_freed_stream_goes_to_the_end_of_the_line(batches):
    """Otherwise a busy stream would keep the others from their turn."""
    batches.enqueue(5, "pay", stream="busy")
    batches.enqueue(5, "pay", stream="other")
    [holder] = claim_streams(batches, streams_max=1)
    assert holder.stream == "busy"
    assert holder.release()
    assert [one.stream for one in claim_streams(batches, streams_max=1)] == ["other"]


@pytest.mark.parametrize(
    "terms",
    [
        {"on_failure": "stop"},
        {"on_failure": "block_for"},
        {"block_seconds": 5},
        {"on_failure": "block_for", "block_seconds": 0},
        {"on_failure": "block_for", "block_seconds": "NaN"},
        {"batch_max": 0},
        {"batch_max": 101},
        {"batch_max": 1.5},
        {"confirm_within_seconds": 0},
        {"confirm_within_seconds": 1e300},
    ],
)
def test_contract_with_impossible_terms_of_streams_is_refused(outbox, terms):
    with refused("22023"):
        outbox.publish("pay", scope="stream", **terms)


def test_batches_outside_of_streams_are_refused(outbox):
    with refused("22023"):
        outbox.publish("pay", batch_max=2)


def test_stream_in_doubt_is_listed_with_the_answer_of_the_gateway(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    [head] = outbox.enqueue(target="pay", stream="a")
    [holder] = claim_streams(outbox)
    holder.begin([head])
    holder.record_next([head], "IN_DOUBT", reason="status", code="500", detail="boom")
    [shown] = outbox.database.execute("SELECT * FROM leasehold.blocked_streams")
    assert (shown["state"], shown["reason"]) == ("in_doubt", "500 boom")


def test_result_of_a_stream_is_not_recorded_as_if_its_lease_were_of_a_cluster(streams):
    """It would leave a failed stream without its pause."""
    [head] = streams.enqueue(target="pay", stream="s")
    [holder] = claim_streams(streams)
    assert holder.begin([head]) == ["begun"]
    with refused("22023"):
        holder.call("record_attempts", *holder.fence, [leased_result(head, "FAILED")])
    assert streams.states(head) == []
    assert holder.record_next([head], "FAILED")[0]["stream_state"] == "paused"
