"""Operations over HTTP: cancel, resolve, retry, redrive."""

from __future__ import annotations

from uuid import uuid4

import pytest

from leasehold.web.limiter import RedriveLimiter
from tests.support.api import problem


def ledger(database, intent_id):
    return database.execute(
        "SELECT state, holder, detail FROM leasehold.outbox_attempts WHERE intent_id = %s"
        " ORDER BY attempt_no",
        [intent_id],
    )


async def test_ledger_names_the_token_that_cancelled(api, outbox, database):
    [intent_id] = outbox.enqueue()
    client = await api.client("operate", name="night-shift")
    response = await client.post(f"/v1/intents/{intent_id}/cancel", json={"note": "a mistake"})
    assert response.status_code == 200, response.text
    assert response.json() == {
        "intent_id": str(intent_id),
        "verdict": "cancelled",
        "operator": "night-shift",
    }
    [row] = ledger(database, intent_id)
    assert (row["state"], row["holder"], row["detail"]) == ("CANCELLED", "night-shift", "a mistake")


async def test_intent_in_flight_cannot_be_cancelled(api, outbox):
    [intent_id] = outbox.enqueue()
    outbox.claim()
    response = await api.post(f"/v1/intents/{intent_id}/cancel", {"note": "x"})
    document = problem(response, 409, "not_possible")
    assert document["verdict"] == "in_flight"
    assert response.headers["retry-after"]


async def test_intent_cannot_be_cancelled_while_a_restore_is_repaired(api, outbox):
    [intent_id] = outbox.enqueue()
    outbox.call("operator", "begin_restored_generation", "ann", "backup of last night")
    response = await api.post(f"/v1/intents/{intent_id}/cancel", {"note": "x"})
    document = problem(response, 409, "not_possible")
    assert document["verdict"] == "restoring"
    assert response.headers["retry-after"]


async def test_deferred_intent_is_made_due_by_the_token_that_asked(api, outbox, database):
    [intent_id] = outbox.enqueue()
    outbox.complete(outbox.claim(), "DEFERRED", reason="credentials_refused", code="401")
    shown = (await api.get(f"/v1/intents/{intent_id}")).json()
    assert (shown["status"], shown["reason"]) == ("pending", "credentials_refused")
    assert shown["code"] == "401"
    assert shown["deferred_since"]
    response = await api.post(f"/v1/intents/{intent_id}/retry-now", {"note": "renewed"})
    assert response.status_code == 200, response.text
    assert response.json()["verdict"] == "due_now"
    [row] = database.execute("SELECT operator, note FROM leasehold.intent_interventions")
    assert row == {"operator": "everything", "note": "renewed"}
    again = await api.post(f"/v1/intents/{intent_id}/retry-now", {"note": "renewed"})
    assert problem(again, 409, "not_possible")["verdict"] == "already_due"


async def test_in_doubt_intent_is_resolved_as_the_operator_decides(api, outbox, database):
    outbox.publish("blind", guarantee="blind")
    told = {"dispatched": "DISPATCHED", "failed": "FAILED", "retry": "RETRYABLE"}
    for resolution, state in told.items():
        [intent_id] = outbox.enqueue(target="blind")
        claims = outbox.claim(targets=["blind"])
        outbox.begin(claims)
        outbox.complete(claims, "IN_DOUBT")
        sent = {"resolution": resolution, "note": "asked them", "reference": "ref-1"}
        response = await api.post(f"/v1/intents/{intent_id}/resolve", sent)
        assert response.status_code == 200, response.text
        last = ledger(database, intent_id)[-1]
        assert (last["state"], last["holder"]) == (state, "everything")


async def test_intent_that_is_not_in_doubt_cannot_be_resolved(api, outbox):
    [intent_id] = outbox.enqueue()
    sent = {"resolution": "failed", "note": "x"}
    response = await api.post(f"/v1/intents/{intent_id}/resolve", sent)
    assert problem(response, 409, "not_possible")["verdict"] == "not_in_doubt"


async def test_finished_intent_is_retried_once(api, outbox):
    [intent_id] = outbox.enqueue()
    outbox.complete(outbox.claim(), "FAILED", reason="rejected")
    first = await api.post(f"/v1/intents/{intent_id}/retry", {"note": "they fixed it"})
    assert first.status_code == 201, first.text
    again = await api.post(f"/v1/intents/{intent_id}/retry", {"note": "they fixed it"})
    assert again.status_code == 200
    assert again.json()["new_intent_id"] == first.json()["new_intent_id"]
    assert again.json()["verdict"] == "already_redriven"
    new = (await api.get(first.headers["location"])).json()
    assert new["redrive_of"] == str(intent_id)


async def test_unfinished_or_accepted_intent_is_not_retried(api, outbox):
    [intent_id] = outbox.enqueue()
    path = f"/v1/intents/{intent_id}/retry"
    document = problem(await api.post(path, {"note": "x"}), 409, "not_possible")
    assert document["verdict"] == "not_terminal"
    outbox.complete(outbox.claim())
    document = problem(await api.post(path, {"note": "x"}), 409, "not_possible")
    assert document["verdict"] == "already_accepted"


async def test_unknown_intent_and_one_of_another_target_are_not_found(api, outbox):
    outbox.publish("mail")
    [intent_id] = outbox.enqueue()
    client = await api.client("operate", targets=["mail"])
    for action in ("cancel", "resolve", "retry", "retry-now"):
        sent = {"note": "x"} | ({"resolution": "failed"} if action == "resolve" else {})
        for one in (uuid4(), intent_id):
            response = await client.post(f"/v1/intents/{one}/{action}", json=sent)
            problem(response, 404, "not_found")


async def test_operation_without_a_note_is_refused(api, outbox, database):
    [intent_id] = outbox.enqueue()
    for sent in ({}, {"note": ""}, {"note": "x" * 2001}, {"note": 1}, {"note": "x", "y": 1}):
        problem(await api.post(f"/v1/intents/{intent_id}/cancel", sent), 422, "invalid")
    assert ledger(database, intent_id) == []


@pytest.fixture
def failed(outbox):
    """Ten rejected intents."""
    outbox.publish("sms")
    intent_ids = outbox.enqueue(10)
    outbox.complete(outbox.claim(), "FAILED", reason="rejected")
    return [str(one) for one in intent_ids]


FILTER = {"target": "sms", "status": "rejected", "note": "they fixed it"}


async def test_redrive_is_a_dry_run_first_and_then_confirmed(api, failed):
    shown = (await api.post("/v1/redrive", FILTER)).json()
    assert (shown["dry_run"], shown["count"], shown["results"]) == (True, 10, None)
    assert shown["intent_ids"] == failed[::-1]
    assert api.intents() == 10
    confirmed = FILTER | {"dry_run": False, "confirmation": shown["confirmation"]}
    done = await api.post("/v1/redrive", confirmed)
    assert done.status_code == 200, done.text
    assert {one["verdict"] for one in done.json()["results"]} == {"redriven"}
    assert api.intents() == 20


@pytest.mark.usefixtures("failed")
async def test_redrive_of_other_intents_than_the_dry_run_is_refused(api, outbox):
    shown = (await api.post("/v1/redrive", FILTER)).json()
    for change in (
        {"limit": 5},
        {"status": "exhausted"},
        {"confirmation": "x"},
        {"confirmation": None},
    ):
        sent = FILTER | {"dry_run": False, "confirmation": shown["confirmation"]} | change
        problem(await api.post("/v1/redrive", sent), 409, "not_confirmed")
    outbox.enqueue()
    outbox.complete(outbox.claim(), "FAILED", reason="rejected")
    sent = FILTER | {"dry_run": False, "confirmation": shown["confirmation"]}
    problem(await api.post("/v1/redrive", sent), 409, "not_confirmed")
    assert api.intents() == 11


@pytest.mark.usefixtures("failed")
async def test_redrive_confirmed_by_another_token_is_refused(api):
    shown = (await api.post("/v1/redrive", FILTER)).json()
    other = await api.client("operate")
    sent = FILTER | {"dry_run": False, "confirmation": shown["confirmation"]}
    problem(await other.post("/v1/redrive", json=sent), 409, "not_confirmed")


async def test_redrive_continues_in_parts(api, failed):
    first = (await api.post("/v1/redrive", FILTER | {"limit": 6})).json()
    rest = (await api.post("/v1/redrive", FILTER | {"limit": 6, "before": first["next"]})).json()
    assert first["intent_ids"] + rest["intent_ids"] == failed[::-1]
    assert rest["next"] is None


@pytest.mark.usefixtures("failed")
async def test_redrive_is_limited_to_a_rate(api):
    api.service.redrive_limiter = RedriveLimiter(burst=3)
    shown = (await api.post("/v1/redrive", FILTER)).json()
    sent = FILTER | {"dry_run": False, "confirmation": shown["confirmation"]}
    response = await api.post("/v1/redrive", sent)
    problem(response, 429, "too_many")
    assert int(response.headers["retry-after"]) >= 1
    assert api.intents() == 10


@pytest.mark.usefixtures("failed")
async def test_redrive_needs_one_target_that_the_token_covers(api, outbox):
    outbox.publish("mail")
    client = await api.client("operate", targets=["mail"])
    problem(await client.post("/v1/redrive", json=FILTER), 403, "forbidden")
    problem(await api.post("/v1/redrive", {"status": "rejected", "note": "x"}), 422, "invalid")
    for status in ("accepted", "pending", "done"):
        problem(await api.post("/v1/redrive", FILTER | {"status": status}), 422, "invalid")
