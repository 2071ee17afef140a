"""A caller meets a row that an open transaction has locked: it takes the others, if there are any.

It must not wait: one slow transaction would stop every worker. The mutants are the same functions
without SKIP LOCKED; each of them waits.
"""

from __future__ import annotations

import re
from functools import partial
from importlib.resources import files

import pytest

from tests.support.lease_holder import claim_streams
from tests.support.outbox import CLUSTER_LEASE

CLAIM = "SELECT intent_id FROM leasehold.claim_outbox_batch(10, 'worker-1', 30, '{sms}')"
REPAIR = "SELECT intent_id FROM leasehold.repair_expired_leases(10, 'reaper')"
RENEW = (
    "WITH held AS MATERIALIZED ("
    "  SELECT array_agg(intent_id) AS ids, array_agg(lease_token) AS tokens"
    "    FROM leasehold.outbox_pending WHERE lease_seconds = 30)"
    " SELECT renewed.intent_id FROM held"
    "  CROSS JOIN leasehold.renew_outbox_leases('worker-1', ids, tokens, 60) AS renewed"
    "  WHERE verdict = 'renewed'"
)
# A claim does not return what it only makes due again.
CREATE_END_CLAIMS = """
CREATE FUNCTION public.end_claims() RETURNS TABLE (ended uuid) LANGUAGE plpgsql AS $$
DECLARE before uuid[] := ARRAY(SELECT intent_id FROM leasehold.outbox_attempts);
BEGIN
  PERFORM FROM leasehold.claim_outbox_batch(10, 'worker-1', 30, '{sms}');
  RETURN QUERY SELECT intent_id FROM leasehold.outbox_attempts WHERE intent_id <> ALL (before);
END $$"""
END_CLAIMS = "SELECT ended FROM public.end_claims()"
BEGIN_LEASED = (
    "WITH due AS MATERIALIZED (SELECT array_agg(intent_id) AS ids FROM leasehold.outbox_pending)"
    " SELECT begun.intent_id FROM due"
    f"  CROSS JOIN leasehold.begin_leased_attempts('{CLUSTER_LEASE}', 'holder-1', 1, ids) AS begun"
    "  WHERE verdict = 'begun'"
)
FINISH = "SELECT intent_id FROM leasehold.repair_missed_deadlines(10, 'reaper')"
RENEW_STREAMS = (
    "WITH held AS MATERIALIZED ("
    "  SELECT array_agg(lease_name) AS names, array_agg(lease_epoch) AS epochs"
    "    FROM leasehold.leases WHERE lease_seconds = 30)"
    " SELECT split_part(renewed.lease_name, '/', 3) AS stream FROM held"
    "  CROSS JOIN leasehold.renew_streams('gone', names, epochs, 60, 60) AS renewed"
    "  WHERE verdict = 'renewed'"
)
CLAIM_STREAMS = "SELECT stream FROM leasehold.claim_streams(10, 'holder-1', 30, 150, '{sms}')"
LOOK_AT_STREAMS = (
    "SELECT stream FROM leasehold.refresh_streams('gone', '{stream/sms/first,stream/sms/second}',"
    " '{1,1}') WHERE stream_state = 'drained'"
)
NEXT_HEADS = (
    "SELECT stream FROM leasehold.refresh_streams('gone', '{stream/sms/first,stream/sms/second}',"
    " '{1,1}', p_begin => true) WHERE stream_state = 'ready'"
)
TAKE_OVER = (
    "SELECT stream FROM leasehold.claim_streams(10, 'holder-1', 30, 150, '{sms}')"
    " WHERE is_taken_over"
)
BEGIN_HEADS = (
    "WITH due AS MATERIALIZED (SELECT array_agg(intent_id) AS ids FROM leasehold.outbox_pending)"
    " SELECT split_part(p.lease_name, '/', 3) AS stream FROM due"
    "  CROSS JOIN leasehold.begin_stream_attempts("
    "    'gone', '{stream/sms/first,stream/sms/second}', '{1,1}', ids) AS begun"
    "  JOIN leasehold.outbox_pending p ON p.intent_id = begun.intent_id WHERE verdict = 'begun'"
)
COMPLETE = (
    "WITH held AS MATERIALIZED ("
    "  SELECT jsonb_agg(jsonb_build_object('intent_id', intent_id, 'lease_token', lease_token,"
    "                                      'state', 'DISPATCHED')) AS results"
    "    FROM leasehold.outbox_pending)"
    " SELECT done.intent_id"
    "  FROM held CROSS JOIN leasehold.complete_outbox_attempts('worker-1', results) AS done"
    "  WHERE verdict = 'applied'"
)
RECORD = (
    "WITH due AS MATERIALIZED ("
    "  SELECT jsonb_agg(jsonb_build_object('intent_id', intent_id, 'state', 'DISPATCHED',"
    "                                      'attempt_no', 1)) AS results"
    "    FROM leasehold.outbox_pending)"
    " SELECT done.intent_id FROM due"
    f"  CROSS JOIN leasehold.record_attempts('{CLUSTER_LEASE}', 'holder-1', 1, results) AS done"
    "  WHERE verdict = 'applied'"
)
RECORD_HEADS = (
    "WITH due AS MATERIALIZED ("
    "  SELECT array_agg(lease_name) AS names, array_agg(1::bigint) AS epochs,"
    "         jsonb_agg("
    "           jsonb_build_object('intent_id', intent_id, 'state', 'DISPATCHED')) AS results"
    "    FROM leasehold.outbox_pending)"
    " SELECT (done.result).intent_id FROM due"
    "  CROSS JOIN leasehold.record_stream_attempts('gone', names, epochs, results) AS done"
    "  WHERE (done.result).verdict = 'applied'"
)
CREATE_RELEASE = """
CREATE FUNCTION public.release_unsent() RETURNS TABLE (unbegun text) LANGUAGE plpgsql AS $$
DECLARE begun uuid[] := ARRAY(SELECT intent_id FROM leasehold.outbox_pending
                               WHERE begun_at IS NOT NULL);
BEGIN
  PERFORM FROM leasehold.claim_streams(10, 'gone', 30, 150, '{sms}', p_begin => true);
  PERFORM FROM leasehold.release_streams('gone', (
    SELECT array_agg(lease_name ORDER BY lease_name) FROM leasehold.leases), (
    SELECT array_agg(lease_epoch ORDER BY lease_name) FROM leasehold.leases), begun);
  RETURN QUERY SELECT stream FROM leasehold.outbox_pending
                WHERE intent_id = ANY (begun) AND begun_at IS NULL;
END $$"""
RELEASE = "SELECT unbegun FROM public.release_unsent()"
PRUNE_STREAMS = (
    "WITH pruned AS MATERIALIZED ("
    "  SELECT pruned AS count FROM leasehold.prune_streams(now() - interval '2 days', 10))"
    " SELECT 'second' AS stream FROM pruned, generate_series(1, count)"
)
CANCEL = (
    "SELECT intent_id FROM leasehold.outbox_pending"
    " WHERE leasehold.cancel_intent(intent_id, 'ann', 'a test') = 'cancelled'"
)
SKIP = (
    "SELECT intent_id FROM leasehold.outbox_pending"
    " WHERE leasehold.skip_stream_head('sms', stream, intent_id, 'ann', 'a test') = 'skipped'"
)
BEGIN_TURN = "SELECT begun FROM leasehold.begin_watch_turn('counts') AS begun WHERE begun = 2"
COUNT = "SELECT 1 FROM leasehold.record_queue_counts(1) AS seconds WHERE seconds IS NOT NULL"
COUNT_DEPTHS = "SELECT 1 FROM leasehold.record_queue_depths(1) AS seconds WHERE seconds IS NOT NULL"
CORRECT_TIMES = f"SELECT leasehold.repair_lease_times('{CLUSTER_LEASE}')"
LOCK_ITEM = "SELECT FROM leasehold.outbox_pending WHERE intent_id = %s FOR UPDATE"
LOCK_LEASE = "SELECT FROM leasehold.leases WHERE lease_name = %s FOR UPDATE"
LOCK_LEASE_OF_STREAM = "SELECT FROM leasehold.leases WHERE stream = %s FOR UPDATE"
LOCK_STREAM = "SELECT FROM leasehold.streams WHERE stream = %s FOR UPDATE"
LOCK_HEAD = "SELECT FROM leasehold.outbox_pending WHERE stream = %s FOR UPDATE"
LOCK_TURN = "SELECT FROM leasehold.watch_turns WHERE name = %s FOR UPDATE"
FUNCTIONS = files("leasehold.store.postgres").joinpath("sql/functions").iterdir()
SKIPPING = sorted(
    file.name.removesuffix(".sql")
    for file in FUNCTIONS
    if re.search(r"^(?!--).*SKIP LOCKED", file.read_text(), re.MULTILINE)
)


def due(outbox):
    outbox.publish()
    return outbox.enqueue(2)


def led(outbox):
    outbox.publish(scope="cluster")
    outbox.acquire("holder-1")
    return outbox.enqueue(2)


def claimed(outbox):
    ids = due(outbox)
    outbox.claim()
    return ids


def expired(outbox):
    """Claims that expired before their call was begun."""
    outbox.publish()
    ids = outbox.enqueue(2)
    outbox.claim("dead")
    outbox.expire_claims()
    return ids


def expired_for_claims(outbox):
    outbox.database.execute(CREATE_END_CLAIMS)
    return expired(outbox)


def past_deadline(outbox, **terms):
    outbox.publish(**terms)
    stream = {"stream": "first"} if terms else {}
    ids = outbox.enqueue(2, deadline_seconds=60, **stream)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp() - interval '1 second'"
    )
    return ids


def free_streams(outbox):
    outbox.publish(scope="stream")
    for stream in ("first", "second"):
        outbox.enqueue(stream=stream)
    return ["first", "second"]


def heads(outbox):
    outbox.publish(scope="stream")
    return [*outbox.enqueue(1, stream="first"), *outbox.enqueue(1, stream="second")]


def expired_streams(outbox):
    streams = free_streams(outbox)
    for held in claim_streams(outbox, "gone", ["sms"]):
        outbox.expire_lease(held.lease_name)
    return streams


def held_streams(outbox):
    streams = free_streams(outbox)
    claim_streams(outbox, "gone", ["sms"])
    return streams


def begun_streams(outbox):
    streams = free_streams(outbox)
    for held in claim_streams(outbox, "gone", ["sms"]):
        held.begin([head["intent_id"] for head in held.heads])
    return streams


def begun_heads(outbox):
    begun_streams(outbox)
    query = "SELECT intent_id FROM leasehold.outbox_pending ORDER BY stream"
    return [row["intent_id"] for row in outbox.database.execute(query)]


def unsent_streams(outbox):
    outbox.database.execute(CREATE_RELEASE)
    return begun_streams(outbox)


def calls_of_the_dead(outbox):
    streams = begun_streams(outbox)
    for stream in streams:
        outbox.expire_lease(f"stream/sms/{stream}")
    return streams


def drained_streams(outbox):
    streams = free_streams(outbox)
    for held in claim_streams(outbox, "gone", ["sms"]):
        [head] = held.heads
        held.begin([head["intent_id"]])
        held.record([head["intent_id"]], "DISPATCHED")
    return streams


def idle_streams(outbox):
    streams = drained_streams(outbox)
    outbox.call("executor", "release_streams", "gone", *stream_fences(streams))
    week = "interval '7 days'"
    outbox.database.owner_execute(f"UPDATE leasehold.streams SET created_at = now() - {week}")
    outbox.database.owner_execute(f"UPDATE leasehold.leases SET renewed_at = now() - {week}")
    return streams


def stream_fences(streams):
    return [f"stream/sms/{stream}" for stream in streams], [1] * len(streams)


def impossible_lease(outbox):
    outbox.acquire()
    outbox.database.owner_execute(
        "UPDATE leasehold.leases SET acquired_at = acquired_at + interval '1 hour',"
        " renewed_at = renewed_at + interval '1 hour', expires_at = expires_at + interval '1 hour',"
        " grace_expires_at = grace_expires_at + interval '1 hour'"
    )
    return [CLUSTER_LEASE]


def begun_turn(outbox, name="counts"):
    outbox.call("readonly", "begin_watch_turn", name)
    return [name]


def due_turn(outbox):
    begun_turn(outbox)
    outbox.database.owner_execute("UPDATE leasehold.watch_turns SET next_at = '-infinity'")
    return ["counts"]


# For each function that skips locked rows: what there is, how another session locks the first of
# it, and the call that must not wait, with its role. A function that meets several kinds of rows
# has several lines, with the kind in brackets.
MEETINGS = {
    "lock_pending_rows (claims)": (claimed, LOCK_ITEM, COMPLETE, "owner"),
    "lock_pending_rows (lease)": (led, LOCK_ITEM, RECORD, "owner"),
    "lock_pending_rows (streams)": (begun_heads, LOCK_ITEM, RECORD_HEADS, "owner"),
    "begin_leased_attempts": (led, LOCK_ITEM, BEGIN_LEASED, "owner"),
    "claim_outbox_batch": (due, LOCK_ITEM, CLAIM),
    "renew_outbox_leases": (claimed, LOCK_ITEM, RENEW, "owner"),
    "renew_leases": (held_streams, LOCK_LEASE_OF_STREAM, RENEW_STREAMS, "owner"),
    "requeue_expired_claims": (expired_for_claims, LOCK_ITEM, END_CLAIMS),
    "repair_expired_leases": (expired, LOCK_ITEM, REPAIR),
    "repair_missed_deadlines": (past_deadline, LOCK_ITEM, FINISH),
    "claim_streams": (free_streams, LOCK_LEASE_OF_STREAM, CLAIM_STREAMS),
    "claim_streams (head)": (free_streams, LOCK_HEAD, CLAIM_STREAMS),
    "lock_begun_rows": (calls_of_the_dead, LOCK_HEAD, TAKE_OVER),
    "begin_stream_attempts": (held_streams, LOCK_HEAD, BEGIN_HEADS, "owner"),
    "release_streams": (unsent_streams, LOCK_HEAD, RELEASE, "owner"),
    "lock_expired_streams": (expired_streams, LOCK_LEASE_OF_STREAM, CLAIM_STREAMS),
    "lock_for_intervention": (heads, LOCK_ITEM, CANCEL, "operator"),
    "skip_stream_head": (heads, LOCK_ITEM, SKIP, "operator"),
    "lock_settled_streams": (drained_streams, LOCK_STREAM, LOOK_AT_STREAMS),
    "advance_streams": (held_streams, LOCK_HEAD, NEXT_HEADS),
    "prune_streams": (idle_streams, LOCK_STREAM, PRUNE_STREAMS, "owner"),
    "begin_watch_turn": (due_turn, LOCK_TURN, BEGIN_TURN),
    "record_queue_counts": (begun_turn, LOCK_TURN, COUNT),
    "record_queue_depths": (
        partial(begun_turn, name="depths"),
        LOCK_TURN,
        COUNT_DEPTHS,
        "readonly",
    ),
    "lock_missed_under_leases": (partial(past_deadline, scope="cluster"), LOCK_ITEM, FINISH),
    "repair_lease_times": (impossible_lease, LOCK_LEASE, CORRECT_TIMES, None),
}


def function_of(meeting):
    return meeting.partition(" ")[0]


def meet(outbox, meeting):
    """Lock the first row in one session and make the call in another; returns both."""
    make, lock, call, role = (*MEETINGS[meeting], "executor")[:4]
    locked, *others = make(outbox)
    writer = outbox.database.session()
    writer.run("BEGIN")
    writer.run(lock, [locked])
    caller = outbox.database.session(role)
    return writer, caller, caller.start(call), others


def test_every_function_that_skips_locked_rows_is_tested_here():
    assert sorted(set(map(function_of, MEETINGS))) == SKIPPING


@pytest.mark.parametrize("meeting", MEETINGS)
def test_caller_that_meets_a_locked_row_takes_the_others_and_does_not_wait(outbox, meeting):
    writer, caller, calling, others = meet(outbox, meeting)
    assert [value for row in calling.result() for value in row.values() if value] == others
    writer.run("COMMIT")
    assert len(caller.run(MEETINGS[meeting][2])) == 1, (
        "the row that was locked is still there to be taken"
    )


@pytest.mark.parametrize("meeting", MEETINGS)
def test_mutant_without_skip_locked_waits_for_the_other_transaction(outbox, meeting):
    outbox.database.execute("SET search_path = pg_catalog")  # so that all types are in full
    [source] = outbox.database.execute(
        "SELECT pg_get_functiondef(%s::regproc) AS text", [f"leasehold.{function_of(meeting)}"]
    )
    assert " SKIP LOCKED" in source["text"]
    outbox.database.execute(source["text"].replace(" SKIP LOCKED", ""))
    writer, _, calling, others = meet(outbox, meeting)
    calling.assert_blocked()
    writer.run("ROLLBACK")
    assert len(calling.result()) == 1 + len(others)


def claimed_items(outbox):
    outbox.publish()
    ids = outbox.enqueue(500)
    outbox.claim(batch_size=500)
    return ids


def leased_items(outbox):
    outbox.publish(scope="cluster")
    outbox.acquire("holder-1")
    return outbox.enqueue(500)


def heads_of_streams(outbox):
    outbox.publish(scope="stream", concurrency=500)
    entries = [{"target": "sms", "payload": one, "stream": f"s{one}"} for one in range(500)]
    ids = [row["intent_id"] for row in outbox.enqueue_entries(entries)]
    outbox.database.execute(
        "SELECT FROM leasehold.claim_streams(500, 'gone', 30, 150, '{sms}', p_begin => true)"
    )
    return ids


@pytest.mark.parametrize(
    ("make", "record"),
    [(claimed_items, COMPLETE), (leased_items, RECORD), (heads_of_streams, RECORD_HEADS)],
)
def test_499_of_500_results_are_on_the_ledger_while_one_row_is_locked(outbox, make, record):
    locked, *others = make(outbox)
    writer, executor = outbox.database.session(), outbox.database.session("owner")
    writer.run("BEGIN")
    writer.run(LOCK_ITEM, [locked])
    assert {row["intent_id"] for row in executor.run(record)} == set(others)
    [states] = executor.run(
        "SELECT count(*) AS rows, count(*) FILTER (WHERE intent_id = %s) AS locked"
        "  FROM leasehold.outbox_attempts WHERE state = 'DISPATCHED'",
        [locked],
    )
    assert states == {"rows": 499, "locked": 0}
    writer.run("COMMIT")
    assert executor.run(record) == [{"intent_id": locked}]
    assert outbox.states(locked) == ["DISPATCHED"]
