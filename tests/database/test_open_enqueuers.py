"""Transactions that enqueue into streams and stay open for more than ten minutes block nobody.

Whoever waits for a lock for a tenth of a second is refused here. The meetings of a finisher with
one open enqueuer are in test_stream_races, single functions that skip locked rows in
test_locked_rows.
"""

from __future__ import annotations

import json
from collections import defaultdict

import psycopg
import pytest

from tests.database.test_partitions_and_prune import add_old_intents, prune
from tests.support.lease_holder import claim_streams
from tests.support.mutants import mutate

ENQUEUE = "SELECT intent_id FROM leasehold.enqueue_intents(%s)"
PRUNE_STREAMS = "SELECT pruned FROM leasehold.prune_streams(now() - interval '2 days', 100)"
# The open transactions: the first row of a new stream, a further row behind a head, in flight or
# finished meanwhile, and a row of a stream that is drained.
OPEN = ("new", "busy", "quiet", "drained")
TERMS = {
    "plain": {"guarantee": "keyed"},
    "pipelined": {"guarantee": "lookup", "pipeline_max": 3},
}
PASS = """
WITH step AS (SELECT make_interval(secs => %s) AS step), items AS (
  UPDATE leasehold.outbox_pending
     SET due_at = due_at - step, deadline_at = deadline_at - step, begun_at = begun_at - step,
         first_tried_at = first_tried_at - step, lease_expires_at = lease_expires_at - step
    FROM step
), pauses AS (
  UPDATE leasehold.stream_pauses
     SET paused_since = paused_since - step, paused_until = paused_until - step FROM step
)
UPDATE leasehold.leases
   SET acquired_at = acquired_at - step, renewed_at = renewed_at - step,
       expires_at = expires_at - step, grace_expires_at = grace_expires_at - step,
       paused_since = paused_since - step, paused_until = paused_until - step
  FROM step
"""


class Scene:
    """Streams with open enqueuers, and others beside them."""

    def __init__(self, outbox, terms):
        self.outbox, self.database = outbox, outbox.database
        # In a pipeline the row of the enqueuer is behind a head that is SUBMITTED meanwhile.
        self.result = "SUBMITTED" if "pipeline_max" in terms else "DISPATCHED"
        self.accepted = defaultdict(list)
        self.finished = defaultdict(list)
        outbox.publish()
        outbox.publish("pay", scope="stream", **terms)
        add_old_intents(outbox, months=3, count=2)
        outbox.enqueue()
        outbox.claim("dead")
        for stream in ("old", "drained"):
            self.enqueue(stream)
            self.finish(self.claim("holder-0"))
        self.database.owner_execute(
            "UPDATE leasehold.streams SET created_at = created_at - interval '7 days'"
        )
        self.pass_time(7 * 86400)
        for stream in ("busy", "quiet"):
            self.enqueue(stream)
        self.held = self.claim("holder-1")
        for one in self.held.values():
            one.begin(heads_of(one.heads))
        self.enqueuers = [self.open_enqueuer(stream) for stream in OPEN]
        for role in ("executor", "operator", "ingest"):
            outbox.as_role(role).execute("SET lock_timeout = '100ms'")

    def enqueue(self, stream, **fields):
        [intent_id] = self.outbox.enqueue(target="pay", stream=stream, **fields)
        self.accepted[stream].append(intent_id)
        return intent_id

    def open_enqueuer(self, stream):
        session = self.database.session("ingest")
        session.run("BEGIN")
        entry = {"target": "pay", "payload": 1, "stream": stream}
        [row] = session.run(ENQUEUE, [json.dumps([entry])])
        self.accepted[stream].append(row["intent_id"])
        return session

    def claim(self, name):
        # The first expiry is after half a minute, the second after an hour.
        found = claim_streams(self.outbox, name, grace_seconds=3600)
        return {one.stream: one for one in found}

    def finish(self, held):
        """Do what the database says in these streams, until nothing is due."""
        for one in held.values():
            rows = list(one.heads)
            while ids := heads_of(rows):
                one.begin(ids)
                rows = one.record_next(ids, "DISPATCHED")
                self.finished[one.stream] += ids

    def pass_time(self, seconds):
        self.database.owner_execute(PASS, [seconds])

    def reap(self):
        """Call what the reaper calls; return how many rows each call reports."""
        call = self.outbox.call
        return {
            "claims": len(call("executor", "repair_expired_leases", 100, "reaper")),
            "deadlines": len(call("executor", "repair_missed_deadlines", 100, "reaper")),
            "months": len(call("executor", "create_ledger_partitions", 5)),
            "streams": self.outbox.as_role("executor").execute(PRUNE_STREAMS).fetchone()["pruned"],
            "intents": prune(self.database, months=1)["intents_deleted"],
        }


def heads_of(rows):
    return [row["intent_id"] for row in rows if row["intent_id"]]


def states_of(rows):
    return [(row["stream_state"], row["is_held"]) for row in rows]


def work_beside_open_enqueuers(scene):
    """Every call of an executor, for more than ten minutes on each side of both expiries."""
    busy, quiet = scene.held["busy"], scene.held["quiet"]
    other = scene.enqueue("other")
    late = scene.enqueue("late", deadline_seconds=60)
    scene.outbox.call("operator", "pause_stream", "pay", "late", "ada", "wait", 3600)
    assert scene.claim("holder-2").keys() == {"other"}
    for held in (busy, quiet):
        held.renew(grace_seconds=3600)
    [head] = heads_of(quiet.heads)
    rows = quiet.record_next([head], scene.result, retry_after_seconds=60)
    assert states_of(rows) == [("recheck", True)]
    if scene.result == "DISPATCHED":
        scene.finished["quiet"].append(head)
    assert states_of(quiet.look(free_idle=True)) == [("recheck", True)]
    assert quiet.release()
    [taken] = scene.claim("holder-2").values()
    assert (taken.stream, taken.heads) == ("quiet", ())

    scene.pass_time(700)  # between the two expiries
    scene.outbox.call("operator", "resume_stream", "pay", "late", "ada", "go on")
    assert scene.reap() == {
        "claims": 1,
        "deadlines": 1,
        "months": 2,
        "streams": 1,
        "intents": 2,
    }
    assert scene.outbox.status(late) == "exhausted"
    held = scene.claim("holder-3")
    assert held.keys() == {"quiet", "other"}, "nothing was in flight there"
    scene.finish(held)
    assert scene.outbox.status(other) == "accepted"

    scene.pass_time(4000)  # after the second expiry
    scene.reap()
    scene.enqueue("other")
    held = scene.claim("holder-4")
    assert held.keys() >= {"quiet", "other"}
    scene.finish(held)
    [head, _] = scene.accepted["busy"]
    assert scene.outbox.states(head) == ["IN_DOUBT"]
    assert busy.record([head], "DISPATCHED") == ["lease_lost"]
    for stream in OPEN[1:]:
        for function in ("pause_stream", "resume_stream"):
            scene.outbox.call("operator", function, "pay", stream, "ada", "look")


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_enqueuers_that_stay_open_for_minutes_block_nobody(outbox, terms, end):
    scene = Scene(outbox, TERMS[terms])
    work_beside_open_enqueuers(scene)
    for stream, session in zip(OPEN, scene.enqueuers, strict=True):
        session.run(end)
        if end == "ROLLBACK":
            scene.accepted[stream].pop()
        scene.enqueue(stream)  # it waits for nobody, and goes behind the others
    del scene.accepted["late"]
    for _ in range(4):
        scene.pass_time(4000)
        scene.finish(scene.claim("holder-5"))
    assert scene.finished == scene.accepted


@pytest.mark.one_server
@pytest.mark.parametrize("function", ["lock_settled_streams", "prune_streams"])
def test_mutant_without_skip_locked_waits_for_an_open_enqueuer(outbox, database, function):
    mutate(database, function, " SKIP LOCKED", "")
    scene = Scene(outbox, TERMS["plain"])
    with pytest.raises(psycopg.errors.LockNotAvailable):
        work_beside_open_enqueuers(scene)
