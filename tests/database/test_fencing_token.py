"""The fencing token of one submission key never falls, whatever becomes of the intent."""

from __future__ import annotations

import pytest

from tests.support.lease_holder import claim_streams, take
from tests.support.outbox import CLUSTER_LEASE

pytestmark = pytest.mark.one_server

ITEM = {"scope": "item"}
CLUSTER = {"scope": "cluster"}
OTHER_GROUP = {"scope": "cluster", "lease_name": "another-executor"}
STREAM = {"scope": "stream"}
ALL = {"item": ITEM, "cluster": CLUSTER, "another group": OTHER_GROUP, "stream": STREAM}


def publish(outbox, terms):
    continues = {"on_failure": "continue"} if terms is STREAM else {}
    outbox.publish(
        guarantee="fenced", attempts_max=1, retry_policy="one_shot", **terms, **continues
    )


def wear_out(outbox, lease_name, epochs):
    """Raise the epoch of a lease, as so many elections would."""
    for number in range(epochs):
        assert take(outbox, f"holder-{number}", lease_name).release()


def try_once(outbox, intent_id, terms):
    """Have the holder of its scope try an intent, and fail; return the token of the call."""
    outbox.make_due()
    if terms is ITEM:
        claims = outbox.claim()
        [claim] = [one for one in claims if one["intent_id"] == intent_id]
        outbox.complete([claim], "RETRYABLE")
        return claim["fencing_token"]
    if terms is STREAM:
        [holder] = claim_streams(outbox, targets=["sms"])
        [head] = holder.heads
        token = head["fencing_token"]
        assert holder.begin([intent_id]) == ["begun"]
    else:
        holder = take(outbox, lease_name=terms.get("lease_name", CLUSTER_LEASE))
        [row] = [one for one in holder.window() if one["intent_id"] == intent_id]
        batch = ([intent_id], [row["attempt_count"] + 1], 1, [True])
        [_, content] = holder.call("mark_calls", *holder.fence, *batch)
        read = holder.call(
            "refresh_due_rows", holder.name, [holder.lease_name], [holder.epoch], ["sms"], 10, 1000
        )
        token = content["fencing_token"]
        assert [one["fencing_token"] for one in read if one["intent_id"] == intent_id] == [token]
    assert holder.record([intent_id], "RETRYABLE") == ["applied"]
    assert holder.release()
    return token


@pytest.mark.parametrize("scope", ALL)
def test_every_attempt_under_one_lease_has_a_newer_token(outbox, scope):
    continues = {"on_failure": "continue"} if scope == "stream" else {}
    outbox.publish(guarantee="fenced", attempts_max=5, **ALL[scope], **continues)
    [intent_id] = outbox.enqueue(stream="s")
    tokens = try_under_one_lease(outbox, intent_id, ALL[scope], attempts=3)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 3


def try_under_one_lease(outbox, intent_id, terms, attempts):
    """Have one holder try an intent so often; return the token of each call."""
    if terms is ITEM:
        return [try_once(outbox, intent_id, terms) for _ in range(attempts)]
    tokens = []
    holder = None
    for _ in range(attempts):
        outbox.make_due()
        if terms is STREAM:
            tokens.append(try_once(outbox, intent_id, terms))
            # The epoch alone must not be what made the token rise.
            outbox.database.execute("UPDATE leasehold.leases SET lease_epoch = lease_epoch - 1")
            continue
        holder = holder or take(outbox, lease_name=terms.get("lease_name", CLUSTER_LEASE))
        [row] = [one for one in holder.window() if one["intent_id"] == intent_id]
        batch = ([intent_id], [row["attempt_count"] + 1], 1, [True])
        [_, content] = holder.call("mark_calls", *holder.fence, *batch)
        tokens.append(content["fencing_token"])
        assert holder.record([intent_id], "RETRYABLE") == ["applied"]
    return tokens


def redrive(outbox, intent_id):
    [row] = outbox.call("operator", "redrive_intents", [intent_id], "operator", "again")
    assert row["verdict"] == "redriven"
    return row["new_intent_id"]


@pytest.mark.parametrize("after", ALL)
@pytest.mark.parametrize("before", ALL)
def test_redrive_in_any_scope_never_sends_a_lower_token(outbox, before, after):
    wear_out(outbox, CLUSTER_LEASE, 11)
    publish(outbox, ALL[before])
    [intent_id] = outbox.enqueue(stream="s")
    first = try_once(outbox, intent_id, ALL[before])
    publish(outbox, ALL[after])
    second_id = redrive(outbox, intent_id)
    second = try_once(outbox, second_id, ALL[after])
    third = try_once(outbox, redrive(outbox, second_id), ALL[after])
    assert 0 < first < second < third
    [row] = outbox.database.execute(
        "SELECT count(DISTINCT submission_key) AS keys FROM leasehold.intents"
    )
    assert row["keys"] == 1
