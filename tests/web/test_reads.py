"""Read intents, targets, instances, leases and totals over HTTP."""

from __future__ import annotations

import asyncio
from datetime import datetime
from importlib import metadata
from uuid import UUID, uuid4

from tests.support.api import problem
from tests.support.engine import until

SMS = {"target": "sms", "payload": {"to": "+41"}}


async def test_state_of_an_intent_can_be_read(api, outbox):
    [intent_id] = outbox.enqueue(idempotency_key="k", stream="s")
    response = await api.get(f"/v1/intents/{intent_id}")
    assert response.status_code == 200
    answer = response.json()
    assert answer["intent_id"] == str(intent_id)
    assert (answer["status"], answer["target"], answer["stream"]) == ("pending", "sms", "s")
    assert answer["idempotency_key"] == "k"
    assert "payload" not in answer


async def test_unchanged_intent_is_304(api, outbox):
    [intent_id] = outbox.enqueue()
    first = await api.get(f"/v1/intents/{intent_id}")
    headers = {"If-None-Match": first.headers["etag"]}
    same = await api.get(f"/v1/intents/{intent_id}", headers=headers)
    assert (same.status_code, same.content) == (304, b"")
    assert same.headers["etag"] == first.headers["etag"]
    outbox.complete(outbox.claim())
    changed = await api.get(f"/v1/intents/{intent_id}", headers=headers)
    assert changed.status_code == 200
    assert changed.json()["status"] == "accepted"
    assert changed.headers["etag"] != first.headers["etag"]


async def test_read_can_wait_until_the_intent_is_finished(api, outbox):
    [intent_id] = outbox.enqueue()
    client = await api.client("read")
    waiting = asyncio.create_task(client.get(f"/v1/intents/{intent_id}?wait_seconds=30"))
    outbox.complete(await until(outbox.claim))
    assert (await waiting).json()["status"] == "accepted"


async def test_attempts_are_the_ledger_without_lease_tokens(api, outbox):
    [intent_id] = outbox.enqueue()
    outbox.complete(outbox.claim(), reference="ref-1", code="200")
    answer = (await api.get(f"/v1/intents/{intent_id}/attempts")).json()
    [attempt] = answer["attempts"]
    assert (attempt["state"], attempt["reference"]) == ("DISPATCHED", "ref-1")
    assert "lease_token" not in attempt


async def test_content_needs_the_scope_audit(api, outbox):
    [intent_id] = outbox.enqueue()
    client = await api.client("audit")
    answer = (await client.get(f"/v1/intents/{intent_id}/content")).json()
    assert answer["payload"] == {"number": 0}
    assert answer["body"] is None
    reader = await api.client("read", "operate", "ingest")
    problem(await reader.get(f"/v1/intents/{intent_id}/content"), 403, "forbidden")


async def test_content_shows_every_digit_that_is_stored(api):
    numbers = b'{"a": 0.12345678901234567890, "b": 1.10, "c": [12345678901234567890.5]}'
    sent = b'{"target": "sms", "payload": %s, "metadata": {"m": 1.10}}' % numbers
    headers = {"content-type": "application/json"}
    accepted = (await api.request("POST", "/v1/intents", content=sent, headers=headers)).json()
    response = await api.get(f"/v1/intents/{accepted['intent_id']}/content")
    assert response.headers["content-type"] == "application/json"
    assert response.json()["intent_id"] == accepted["intent_id"]
    assert numbers in response.content
    assert b'{"m": 1.10}' in response.content


async def test_content_of_bytes_has_no_payload_and_no_metadata(api):
    sent = {"target": "sms", "body": "AP8=", "content_type": "image/é"}
    accepted = (await api.post("/v1/intents", sent)).json()
    answer = (await api.get(f"/v1/intents/{accepted['intent_id']}/content")).json()
    assert answer == {
        "intent_id": accepted["intent_id"],
        "payload": None,
        "body": "AP8=",
        "content_type": "image/é",
        "metadata": None,
    }


async def test_terms_of_a_target_show_every_digit_that_is_stored(api, database):
    database.owner_execute(
        "SELECT leasehold.publish_contract('mail', %s::jsonb, 'test')",
        ['{"scope": "item", "guarantee": "keyed", "gateway": null, "call_timeout_seconds": 1.10}'],
    )
    assert b'"call_timeout_seconds": 1.10' in (await api.get("/v1/targets")).content


async def test_unknown_intent_is_not_found(api):
    for path in ("", "/attempts", "/content"):
        problem(await api.get(f"/v1/intents/{uuid4()}{path}"), 404, "not_found")
        problem(await api.get(f"/v1/intents/x{path}"), 422, "invalid")


async def test_pages_have_every_intent_once_newest_first(api, outbox):
    intent_ids = [str(one) for one in outbox.enqueue(25)]
    found, path = [], "/v1/intents?limit=10"
    while path:
        page = (await api.get(path)).json()
        found += [one["intent_id"] for one in page["intents"]]
        path = page["next"] and f"/v1/intents?limit=10&before={page['next']}"
    assert found == intent_ids[::-1]


async def test_lists_are_filtered_by_target_status_stream_and_time(api, outbox):
    outbox.publish("mail")
    [first] = outbox.enqueue(stream="a")
    outbox.database.execute("SELECT pg_sleep(0.003)")  # ids are ordered by millisecond
    [mail] = outbox.enqueue(target="mail")
    outbox.complete(outbox.claim(targets=["mail"]))
    [created] = [
        one["created_at"]
        for one in (await api.get("/v1/intents")).json()["intents"]
        if one["intent_id"] == str(mail)
    ]

    async def listed(**query):
        response = await api.get("/v1/intents", params=query)
        assert response.status_code == 200, response.text
        return [UUID(one["intent_id"]) for one in response.json()["intents"]]

    assert await listed(target="mail") == [mail]
    assert await listed(status="pending") == [first]
    assert await listed(status="accepted") == [mail]
    assert await listed(stream="a") == [first]
    assert await listed(since=created) == [mail]
    assert await listed(until=created) == [first]


SENSELESS = [
    *(
        "limit=0",
        "limit=201",
        "status=done",
        "before=x",
        "since=yesterday",
        "staus=pending",
        "target=",
    ),
]


async def test_invalid_list_query_is_refused(api):
    for query in SENSELESS:
        problem(await api.get(f"/v1/intents?{query}"), 422, "invalid")


async def test_query_with_nul_is_refused(api):
    problem(await api.get("/v1/intents?target=%00"), 422, "invalid")
    problem(await api.get("/v1/leases?prefix=%00"), 422, "invalid")
    problem(await api.get("/v1/instances?after=%00"), 422, "invalid")


async def test_token_for_some_targets_sees_only_those(api, outbox):
    outbox.publish("mail")
    [sms] = outbox.enqueue()
    [mail] = outbox.enqueue(target="mail")
    client = await api.client("read", "audit", targets=["mail"])
    listed = (await client.get("/v1/intents")).json()["intents"]
    assert [one["intent_id"] for one in listed] == [str(mail)]
    assert (await client.get("/v1/intents?target=sms")).json()["intents"] == []
    for path in ("", "/attempts", "/content"):
        problem(await client.get(f"/v1/intents/{sms}{path}"), 404, "not_found")
        assert (await client.get(f"/v1/intents/{mail}{path}")).status_code == 200
    targets = (await client.get("/v1/targets")).json()["targets"]
    assert [one["target"] for one in targets] == ["mail"]
    for path in ("/v1/instances", "/v1/leases", "/v1/stats", "/metrics"):
        problem(await client.get(path), 403, "forbidden")
    problem(await client.get("/v1/events?target=sms"), 403, "forbidden")


async def test_targets_have_the_terms_of_their_contract(api):
    [target] = (await api.get("/v1/targets")).json()["targets"]
    assert (target["target"], target["version"], target["is_full"]) == ("sms", 1, False)
    assert target["terms"]["guarantee"] == "keyed"


async def test_instances_and_leases_are_listed_in_pages(api, outbox):
    for number in range(3):
        outbox.call("executor", "renew_instance", f"i{number}", "worker", [], {"n": number}, 30)
        outbox.call("executor", "acquire_lease", f"lease-{number}", f"i{number}", 30, 0)
    for kind, name in (("instances", "instance_id"), ("leases", "lease_name")):
        first = (await api.get(f"/v1/{kind}?limit=2")).json()
        rest = (await api.get(f"/v1/{kind}?limit=2&after={first['next']}")).json()
        assert [one[name][-1] for one in first[kind] + rest[kind]] == ["0", "1", "2"]
        assert rest["next"] is None
    [lease] = (await api.get("/v1/leases?prefix=lease-1")).json()["leases"]
    assert (lease["holder_id"], lease["is_live"]) == ("i1", True)
    [instance] = (await api.get("/v1/instances?limit=1")).json()["instances"]
    assert (instance["detail"], instance["is_alive"]) == ({"n": 0}, True)


async def test_only_who_holds_its_lease_is_told_as_a_leader(api, outbox, database):
    for number in range(4):
        report = {"leads": [f"lease-{number}", "taken"], "pid": number}
        outbox.call("executor", "renew_instance", f"i{number}", "leader", [], report, 30)
        outbox.call("executor", "acquire_lease", f"lease-{number}", f"i{number}", 30, 0)
    outbox.call("executor", "acquire_lease", "taken", "another", 30, 0)
    outbox.call("executor", "release_instance", "i1")
    database.execute(
        "UPDATE leasehold.instances SET last_seen_at = now() - interval '60 seconds',"
        " alive_until = now() - interval '30 seconds' WHERE instance_id = 'i2'"
    )
    outbox.expire_lease("lease-3")
    listed = (await api.get("/v1/instances")).json()["instances"]
    assert [(one["role"], one["is_alive"], one["detail"]["leads"]) for one in listed] == [
        ("leader", True, ["lease-0"]),
        ("stopped", False, []),
        ("silent", False, []),
        ("follower", True, []),
    ]
    assert [one["detail"]["pid"] for one in listed] == [0, 1, 2, 3]


async def test_stats_count_the_queue(api, outbox):
    outbox.enqueue(3)
    outbox.claim(batch_size=1)
    outbox.publish("pay", scope="stream")
    outbox.enqueue(target="pay", stream="s")
    outbox.call("operator", "pause_stream", "pay", "s", "ada", "wait")
    counted = outbox.count_queue()
    outbox.enqueue(2)
    answer = (await api.get("/v1/stats")).json()
    assert (answer["pending"], answer["leased"]) == (4, 1), "as they were counted"
    assert answer["streams_blocked"] == {"pay": 1}
    assert datetime.fromisoformat(answer["seen_at"]) == counted["seen_at"]
    assert answer["age_seconds"] > 0


async def test_metrics_count_requests_and_commits(api):
    await api.post("/v1/intents", SMS)
    await api.get("/v1/nothing-here")
    text = (await api.get("/metrics")).text
    assert (
        'leasehold_http_requests_total{method="POST",route="/v1/intents",status="201",'
        'worker_id="test"} 1.0' in text
    )
    assert 'route="unknown",status="404"' in text
    assert "nothing-here" not in text
    assert 'leasehold_intake_batch_size_count{worker_id="test"} 1.0' in text


async def test_head_gets_the_head_of_get_and_no_body(api):
    client = await api.with_token(None)
    for path in ("/healthz", "/readyz", "/", "/openapi.json"):
        whole, head = await client.get(path), await client.head(path)
        assert (whole.status_code, head.status_code) == (200, 200), path
        for name in ("content-length", "content-type"):
            assert head.headers[name] == whole.headers[name]
        assert head.content == b""
        # The connection is still in step.
        assert (await client.get("/healthz")).json() == {"status": "ok"}
    api.service.drain()
    assert (await client.head("/readyz")).status_code == 503


async def test_root_says_what_this_is_and_where_to_go_on(api):
    client = await api.with_token(None)
    found = (await client.get("/")).json()
    assert found.pop("documentation").startswith("https://")
    assert found == {
        "name": "Leasehold",
        "version": metadata.version("leasehold"),
        "openapi": "/openapi.json",
        "health": "/healthz",
    }
    for link in (found["openapi"], found["health"]):
        assert (await client.get(link)).status_code == 200
    for path in ("/index.html", "/favicon.ico", "/v1", "/v1/"):
        problem(await client.get(path), 404, "not_found")


async def test_405_lists_all_methods_of_the_path(api):
    for path, methods in (
        ("/v1/intents", "GET, POST"),
        ("/v1/stats", "GET"),
        ("/healthz", "GET, HEAD"),
        ("/readyz", "GET, HEAD"),
        ("/", "GET, HEAD"),
    ):
        response = await api.request("PUT", path)
        problem(response, 405, "method_not_allowed")
        assert response.headers["allow"] == methods


async def test_path_with_a_control_character_is_none_of_ours(api):
    for path in ("/healthz", "/readyz", "/metrics", "/v1/intents", "/openapi.json", "/"):
        for character in ("%0a", "%0A", "%0d", "%09", "%7f"):
            problem(await api.get(path + character), 404, "not_found")
    problem(await api.post("/v1/intents%0a", {"target": "sms", "payload": 1}), 404, "not_found")
