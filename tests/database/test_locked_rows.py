"""A claimer or repairer meets a row that an open transaction has locked: it takes the others.

It must not wait: one slow transaction would stop every worker. The mutants are the same functions
without SKIP LOCKED; each of them waits.
"""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from tests.support.lease_holder import claim_streams

CLAIM = "SELECT intent_id FROM leasehold.claim_outbox_batch(10, 'worker-1', 30, '{sms}')"
REPAIR = "SELECT intent_id FROM leasehold.repair_expired_leases(10, 'reaper')"
FINISH = "SELECT intent_id FROM leasehold.repair_missed_deadlines(10, 'reaper')"
CLAIM_STREAMS = (
    "SELECT stream AS intent_id FROM leasehold.claim_streams('holder-1', '{sms}', 30, 180, 10)"
)
LOCK_ITEM = "SELECT FROM leasehold.outbox_pending WHERE intent_id = %s FOR UPDATE"
LOCK_STREAM = (
    "SELECT FROM leasehold.leases l"
    "  JOIN leasehold.outbox_pending p USING (lease_name) WHERE p.stream = %s FOR UPDATE OF l"
)
FUNCTIONS = files("leasehold.store.postgres").joinpath("sql/functions").iterdir()
SKIPPING = sorted(
    file.name.removesuffix(".sql")
    for file in FUNCTIONS
    if re.search(r"^(?!--).*SKIP LOCKED", file.read_text(), re.MULTILINE)
)


def due(outbox):
    outbox.publish()
    return outbox.enqueue(2)


def expired(outbox):
    """Claims that expired before their call was begun."""
    outbox.publish()
    ids = outbox.enqueue(2)
    outbox.claim("dead")
    outbox.expire_claims()
    return ids


def past_deadline(outbox):
    outbox.publish()
    ids = outbox.enqueue(2, deadline_seconds=60)
    outbox.database.owner_execute(
        "UPDATE leasehold.outbox_pending SET deadline_at = clock_timestamp() - interval '1 second'"
    )
    return ids


def free_streams(outbox):
    """Streams that were held once, so that their lease rows are there, and are free again."""
    outbox.publish(scope="stream")
    for stream in ("first", "second"):
        outbox.enqueue(stream=stream)
    for held in claim_streams(outbox, "gone", ["sms"]):
        outbox.expire_lease(held.lease_name)
    return ["first", "second"]


# What there is, how another session locks one of it, and the call that must not wait.
MEETINGS = {
    "claim of a due item": (due, LOCK_ITEM, CLAIM),
    "claim of an expired item": (expired, LOCK_ITEM, CLAIM),
    "repair of an expired item": (expired, LOCK_ITEM, REPAIR),
    "repair of a missed deadline": (past_deadline, LOCK_ITEM, FINISH),
    "claim of a stream": (free_streams, LOCK_STREAM, CLAIM_STREAMS),
}


def meet(outbox, name, make):
    """Lock one of two; return the call of another session, the locked one and the other."""
    _, lock, call = MEETINGS[name]
    locked, other = make(outbox)
    writer = outbox.database.session()
    writer.run("BEGIN")
    writer.run(lock, [locked])
    return outbox.database.session("executor").start(call), writer, locked, other


@pytest.mark.parametrize("name", MEETINGS)
def test_caller_that_meets_a_locked_row_takes_the_others_and_does_not_wait(outbox, name):
    make, _, call = MEETINGS[name]
    calling, writer, locked, other = meet(outbox, name, make)
    assert [row["intent_id"] for row in calling.result()] == [other]
    writer.run("COMMIT")
    again = outbox.as_role("executor").execute(call).fetchall()
    assert [row["intent_id"] for row in again] == [locked]


MUTATED = {
    "claim_outbox_batch": "claim of a due item",
    "requeue_expired_claims": "claim of an expired item",
    "repair_expired_leases": "repair of an expired item",
    "repair_missed_deadlines": "repair of a missed deadline",
    "claim_streams": "claim of a stream",
}


def test_every_function_that_skips_locked_rows_has_its_mutant():
    assert sorted(MUTATED) == SKIPPING


@pytest.mark.parametrize("function", MUTATED)
def test_mutant_without_skip_locked_waits_for_the_other_transaction(outbox, function):
    [source] = outbox.database.execute(
        "SELECT pg_get_functiondef(%s::regproc) AS text", [f"leasehold.{function}"]
    )
    assert " SKIP LOCKED" in source["text"]
    outbox.database.owner_execute(source["text"].replace(" SKIP LOCKED", ""))
    name = MUTATED[function]
    calling, writer, *_ = meet(outbox, name, MEETINGS[name][0])
    calling.assert_blocked()
    writer.run("ROLLBACK")
    assert len(calling.result()) == 2
