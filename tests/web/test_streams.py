"""Streams over HTTP: list blocked ones, read one, pause, resume, skip."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest

from tests.support.api import make_token, problem
from tests.support.lease_holder import claim_streams
from tests.support.raw_http import exchange, statuses

ODD_NAMES = [
    "a/b",
    "/",
    "..",
    "a%2Fb",
    "100%",
    "%00",
    "a+b c&d=e;f#g?h",
    "\"quoted\" \\ 'twice'",
    "Zürich-東京-😀",
    "ß" * 255,
    "😀" * 255,
]


@pytest.fixture
def pay(outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    return outbox


def interventions(database):
    return [
        (row["target"], row["stream"], row["action"], row["operator"], row["note"])
        for row in database.execute(
            "SELECT * FROM leasehold.stream_interventions ORDER BY intervention_id"
        )
    ]


def named(stream="s", note="audit", **more):
    return {"target": "pay", "stream": stream, "note": note} | more


async def read(api, stream="s", target="pay"):
    response = await api.get("/v1/stream", params={"target": target, "stream": stream})
    assert response.status_code == 200, response.text
    return response.json()


async def test_paused_stream_is_listed_until_it_is_resumed(api, pay, database):
    head, *_ = pay.enqueue(3, "pay", stream="s")
    client = await api.client("operate", name="night-shift")
    done = await client.post("/v1/stream/pause", json=named())
    assert done.status_code == 200, done.text
    assert done.json() == {
        "target": "pay",
        "stream": "s",
        "verdict": "paused",
        "operator": "night-shift",
    }
    page = (await api.get("/v1/streams")).json()
    [shown] = page["streams"]
    assert page["next"] is None
    assert (shown["target"], shown["stream"], shown["head"]) == ("pay", "s", str(head))
    assert (shown["state"], shown["reason"], shown["waiting"]) == ("paused", "audit", 2)
    assert (shown["paused_by"], shown["paused_until"]) == ("night-shift", None)
    assert shown["blocked_since"]
    resumed = await client.post("/v1/stream/resume", json=named(note="done"))
    assert resumed.json()["verdict"] == "resumed"
    assert (await api.get("/v1/streams")).json() == {"streams": [], "next": None}
    assert interventions(database) == [
        ("pay", "s", "pause", "night-shift", "audit"),
        ("pay", "s", "resume", "night-shift", "done"),
    ]


async def test_refused_body_of_a_stream_speaks_of_streams(api):
    client = await api.client("operate")
    sent = named() | {"stream": "s" * 256, "target": "a\n", "unheard": 1}
    answer = await client.post("/v1/stream/pause", json=sent)
    told = {one["place"]: one["message"] for one in answer.json()["problems"]}
    assert told == {
        "stream": "must have at most 255 characters",
        "target": "must not contain control characters",
        "unheard": "is not a known member",
    }


async def test_pause_for_a_time_says_when_it_ends(api, pay):
    pay.enqueue(target="pay", stream="s")
    assert (await api.post("/v1/stream/pause", named(seconds=3600))).status_code == 200
    assert (await read(api))["paused_until"] is not None


async def test_skipped_head_is_on_the_ledger_with_the_token(api, pay, database):
    head, behind = pay.enqueue(2, "pay", stream="s")
    client = await api.client("operate", name="night-shift")
    refused = await client.post("/v1/stream/skip", json=named(intent_id=str(behind)))
    assert problem(refused, 409, "not_possible")["verdict"] == "not_head"
    done = await client.post("/v1/stream/skip", json=named(intent_id=str(head), note="poison"))
    assert (done.status_code, done.json()["verdict"]) == (200, "skipped")
    [row] = pay.ledger(head)
    assert (row["state"], row["reason"]) == ("CANCELLED", "skipped_by_operator")
    assert (row["holder"], row["detail"]) == ("night-shift", "poison")
    assert interventions(database) == [("pay", "s", "skip", "night-shift", "poison")]
    again = await client.post("/v1/stream/skip", json=named(intent_id=str(head)))
    assert problem(again, 409, "not_possible")["verdict"] == "already_terminal"


async def test_head_that_is_skipped_in_a_paused_stream_leaves_it_paused(api, pay):
    [head] = pay.enqueue(target="pay", stream="s")
    await api.post("/v1/stream/pause", named())
    done = await api.post("/v1/stream/skip", named(intent_id=str(head)))
    assert (done.status_code, done.json()["verdict"]) == (200, "skipped_paused")


async def test_pause_for_no_time_is_refused(api, pay):
    pay.enqueue(target="pay", stream="s")
    response = await api.post("/v1/stream/pause", named(seconds=0))
    assert [one["place"] for one in problem(response, 422, "invalid")["problems"]] == ["seconds"]


async def test_list_and_stream_agree_on_the_head_of_a_pipeline(api, outbox):
    outbox.publish("pay", scope="stream", guarantee="lookup", pipeline_max=3)
    ids = outbox.enqueue(5, "pay", stream="s")
    [holder] = claim_streams(outbox)
    for one in ids[:2]:
        holder.begin([one])
        holder.record_next([one], "SUBMITTED", retry_after_seconds=60)
    holder.release()
    await api.post("/v1/stream/pause", named())
    [listed] = (await api.get("/v1/streams")).json()["streams"]
    shown = await read(api)
    assert {name: shown[name] for name in listed} == listed
    assert (shown["head"], shown["waiting"], shown["submitted"]) == (str(ids[2]), 2, 2)
    for one in ids[2:]:
        skipped = await api.post("/v1/stream/skip", named(intent_id=str(one)))
        assert skipped.json()["verdict"] == "skipped_paused"
    await api.post("/v1/stream/resume", named())
    rest = await read(api)
    assert (rest["state"], rest["head"], rest["submitted"]) == ("confirming", None, 2)
    assert (await api.get("/v1/streams")).json()["streams"] == []


async def test_lease_of_a_stream_that_nobody_holds_has_no_expiry(api, pay):
    pay.enqueue(target="pay", stream="s")
    [holder] = claim_streams(pay)
    [lease] = (await api.get("/v1/leases")).json()["leases"]
    assert lease["expires_at"] > lease["acquired_at"]
    holder.release()
    [lease] = (await api.get("/v1/leases")).json()["leases"]
    assert (lease["expires_at"], lease["is_live"]) == (None, False)


async def test_call_in_flight_is_shown_in_a_paused_stream(api, pay):
    ids = pay.enqueue(target="pay", stream="s")
    [holder] = claim_streams(pay)
    holder.begin(ids)
    await api.post("/v1/stream/pause", named())
    shown = await read(api)
    assert (shown["state"], shown["holder_id"]) == ("paused", holder.name)
    assert shown["in_flight_since"] is not None
    assert shown["grace_expires_at"] > shown["lease_expires_at"]


async def test_one_stream_is_shown_in_each_of_its_states(api, pay):
    [head] = pay.enqueue(target="pay", stream="s")
    fresh = await read(api)
    assert (fresh["state"], fresh["head"], fresh["blocked_since"]) == ("waiting", str(head), None)
    assert (fresh["holder_id"], fresh["lease_epoch"], fresh["lease_expires_at"]) == (None,) * 3
    [holder] = claim_streams(pay)
    holder.begin([head])
    begun = await read(api)
    assert (begun["state"], begun["holder_id"], begun["lease_epoch"]) == (
        "in_flight",
        holder.name,
        holder.epoch,
    )
    assert begun["lease_expires_at"]
    holder.record_next([head], "IN_DOUBT", code="504")
    doubt = await read(api)
    assert (doubt["state"], doubt["reason"], doubt["attempts"]) == ("in_doubt", "504", 1)
    await api.post(f"/v1/intents/{head}/resolve", {"resolution": "failed", "note": "asked them"})
    ended = await read(api)
    assert (ended["state"], ended["head"], ended["waiting"]) == ("empty", None, 0)


async def test_call_in_flight_or_in_doubt_keeps_its_head_from_being_skipped(api, pay):
    [head] = pay.enqueue(target="pay", stream="s")
    [holder] = claim_streams(pay)
    holder.begin([head])
    sent = named(intent_id=str(head))
    response = await api.post("/v1/stream/skip", sent)
    assert problem(response, 409, "not_possible")["verdict"] == "in_flight"
    assert response.headers["retry-after"]
    holder.record_next([head], "IN_DOUBT")
    response = await api.post("/v1/stream/skip", sent)
    assert problem(response, 409, "not_possible")["verdict"] == "in_doubt"


@pytest.mark.parametrize("path", ["/v1/streams", "/v1/intents"])
async def test_list_of_a_misspelt_target_is_not_an_empty_one(api, pay, path):
    del pay
    assert (await api.get(path, params={"target": "pay"})).status_code == 200
    problem(await api.get(path, params={"target": "nosuch"}), 404, "unknown_target")


async def test_blocked_streams_are_read_in_pages(api, outbox):
    names = [(target, stream) for target in ("mail", "pay") for stream in ("a", "b/%", "é")]
    for target, stream in names:
        if stream == "a":
            outbox.publish(target, scope="stream")
        outbox.enqueue(target=target, stream=stream)
        outbox.call("operator", "pause_stream", target, stream, "ada", "wait")
    found, after = [], {}
    for _ in range(4):
        page = (await api.get("/v1/streams", params={"limit": 2} | after)).json()
        found += [(one["target"], one["stream"]) for one in page["streams"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert found == names
    assert page["next"] is None
    of_pay = (await api.get("/v1/streams", params={"target": "pay"})).json()
    assert [one["stream"] for one in of_pay["streams"]] == ["a", "b/%", "é"]


@pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: ascii(name)[:20])
async def test_any_name_of_a_stream_can_be_sent(api, pay, name):
    [head] = pay.enqueue(target="pay", stream=name)
    assert (await api.post("/v1/stream/pause", named(name))).status_code == 200
    assert (await read(api, name))["head"] == str(head)
    page = (await api.get("/v1/streams", params={"limit": 1})).json()
    assert [one["stream"] for one in page["streams"]] == [name]
    rest = await api.get("/v1/streams", params={"after": page["next"]})
    assert rest.json() == {"streams": [], "next": None}
    skipped = await api.post("/v1/stream/skip", named(name, intent_id=str(head)))
    assert skipped.status_code == 200, skipped.text
    assert (await api.post("/v1/stream/resume", named(name))).status_code == 200


async def test_bytes_on_the_wire_name_the_same_stream(api, pay):
    name = "a/b%2F é"
    pay.enqueue(target="pay", stream=name)
    token = make_token(pay.database, "read")
    await api.service.tokens.step()
    url = urlsplit(api.url)
    head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"

    async def ask(query):
        sent = f"GET /v1/stream?{query} {head}".encode()
        return await asyncio.to_thread(exchange, (url.hostname, url.port), sent)

    for query in (
        f"target=pay&stream={quote(name, safe='')}",
        f"stream={quote(name, safe='/')}&target=%70ay",
        "target=pay&stream=a/b%252F+%C3%A9",
    ):
        answer = await ask(query)
        assert statuses(answer) == [200], answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["stream"] == name
    assert statuses(await ask("target=pay&stream=a/b/+%C3%A9")) == [404]


async def test_token_for_other_targets_sees_and_touches_no_stream(api, pay, database):
    pay.publish("mail", scope="stream")
    [head] = pay.enqueue(target="pay", stream="s")
    pay.enqueue(target="mail", stream="m")
    for target, stream in (("pay", "s"), ("mail", "m")):
        pay.call("operator", "pause_stream", target, stream, "ada", "wait")
    before = interventions(database)
    client = await api.client("read", "operate", targets=["mail"])
    page = (await client.get("/v1/streams")).json()
    assert [one["target"] for one in page["streams"]] == ["mail"]
    for path in ("/v1/streams?target=pay", "/v1/stream?target=pay&stream=s"):
        problem(await client.get(path), 403, "forbidden")
    for action in ("pause", "resume", "skip"):
        sent = named(**({"intent_id": str(head)} if action == "skip" else {}))
        problem(await client.post(f"/v1/stream/{action}", json=sent), 403, "forbidden")
    # Not even whether an intent of another target exists.
    for intent_id in (head, uuid4()):
        sent = {"target": "mail", "stream": "m", "note": "x", "intent_id": str(intent_id)}
        problem(await client.post("/v1/stream/skip", json=sent), 404, "not_found")
    assert interventions(database) == before
    assert pay.status(head) == "pending"


async def test_unknown_stream_is_not_found(api, pay):
    pay.enqueue(target="pay", stream="s")
    params = {"target": "pay", "stream": "S"}
    problem(await api.get("/v1/stream", params=params), 404, "not_found")
    problem(await api.post("/v1/stream/pause", named("S")), 404, "not_found")
    problem(await api.post("/v1/stream/resume", named("S")), 404, "not_found")
    problem(await api.post("/v1/stream/resume", named() | {"target": "nosuch"}), 404, "not_found")


async def test_each_reason_of_a_pause_is_shown_and_resumed_by_its_name(api, pay):
    failed, _ = pay.enqueue(2, "pay", stream="s")
    [holder] = claim_streams(pay)
    holder.begin([failed])
    client = await api.client("operate", name="night-shift")
    await client.post("/v1/stream/pause", json=named(seconds=3600))
    holder.record_next([failed], "FAILED", reason="rejected")
    shown = await read(api)
    assert [
        (one["paused_by"], one["paused_for"], one["paused_until"] is None, one["note"])
        for one in shown["pauses"]
    ] == [("on_failure", str(failed), True, "rejected"), ("night-shift", None, False, "audit")]
    assert (shown["paused_for"], shown["paused_until"]) == (str(failed), None)
    for named_wrong in ({"paused_by": "nobody"}, {"paused_for": str(uuid4())}):
        response = await client.post("/v1/stream/resume", json=named(**named_wrong))
        assert problem(response, 409, "not_possible")["verdict"] == "not_paused"
    both = named(paused_by="night-shift", paused_for=str(failed))
    problem(await client.post("/v1/stream/resume", json=both), 422, "invalid")
    response = await client.post("/v1/stream/resume", json=named(paused_for=str(failed)))
    assert response.json()["verdict"] == "still_paused"
    response = await api.post("/v1/stream/resume", named(paused_by="night-shift"))
    assert response.json()["verdict"] == "resumed"


async def test_stream_that_is_not_paused_cannot_be_resumed(api, pay):
    pay.enqueue(target="pay", stream="s")
    response = await api.post("/v1/stream/resume", named())
    assert problem(response, 409, "not_possible")["verdict"] == "not_paused"


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"note": ""}, "note"),
        ({"note": "x" * 2001}, "note"),
        ({"note": None}, "note"),
        ({"stream": ""}, "stream"),
        ({"stream": "x" * 256}, "stream"),
        ({"stream": "a\nb"}, "stream"),
        ({"stream": 7}, "stream"),
        ({"target": ""}, "target"),
        ({"target": "x" * 65}, "target"),
        ({"seconds": -1}, "seconds"),
        ({"seconds": 2_592_001}, "seconds"),
        ({"seconds": "60"}, "seconds"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_bad_input_names_its_member_and_writes_nothing(api, pay, database, wrong, place):
    pay.enqueue(target="pay", stream="s")
    response = await api.post("/v1/stream/pause", named() | wrong)
    assert [one["place"] for one in problem(response, 422, "invalid")["problems"]] == [place]
    if "seconds" not in wrong:
        response = await api.post("/v1/stream/resume", named() | wrong)
        problem(response, 422, "invalid")
    assert interventions(database) == []


@pytest.mark.parametrize("intent_id", [None, "", "x", 7])
async def test_skip_needs_the_id_of_an_intent(api, pay, database, intent_id):
    pay.enqueue(target="pay", stream="s")
    response = await api.post("/v1/stream/skip", named(intent_id=intent_id))
    assert [one["place"] for one in problem(response, 422, "invalid")["problems"]] == ["intent_id"]
    assert interventions(database) == []


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("/v1/streams?after=x", "after"),
        ("/v1/streams?after=%00", "after"),
        ("/v1/streams?after=_____w", "after"),
        ("/v1/streams?after=cGF5AHMAdA", "after"),
        ("/v1/streams?after=", "after"),
        ("/v1/streams?limit=0", "limit"),
        ("/v1/streams?limit=201", "limit"),
        ("/v1/streams?target=", "target"),
        ("/v1/streams?colour=red", "colour"),
        ("/v1/stream?target=pay", "stream"),
        ("/v1/stream?stream=s", "target"),
        ("/v1/stream?target=pay&stream=%00", "stream"),
        ("/v1/stream?target=pay&stream=s&colour=red", "colour"),
    ],
)
async def test_bad_query_names_its_parameter(api, query, place):
    document = problem(await api.get(query), 422, "invalid")
    assert [one["place"] for one in document["problems"]] == [place]
