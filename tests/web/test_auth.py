"""Tokens: every scope against every route, and every way to be refused."""

from __future__ import annotations

from uuid import uuid4

import pytest

from leasehold.domain.api_token import TokenScope, new_token, token_hash
from leasehold.web.auth import STALE_SECONDS, TokenCache
from leasehold.web.problems import Problem
from leasehold.web.service import WebSettings
from tests.support.api import make_token, problem, serve

ID = str(uuid4())
SMS = {"target": "sms", "payload": {}}
NOTE = {"note": "x"}
RESOLUTION = NOTE | {"resolution": "failed"}
FILTER = NOTE | {"target": "sms", "status": "rejected"}
STREAM = NOTE | {"target": "sms", "stream": "s"}
# Every route, the scope that it needs, a valid body, and the status of the response.
ROUTES = [
    ("POST", "/v1/intents", TokenScope.INGEST, SMS, 201),
    ("POST", "/v1/intents:batch", TokenScope.INGEST, {"intents": [SMS]}, 200),
    ("GET", "/v1/intents", TokenScope.READ, None, 200),
    ("GET", f"/v1/intents/{ID}", TokenScope.READ, None, 404),
    ("GET", f"/v1/intents/{ID}/attempts", TokenScope.READ, None, 404),
    ("GET", f"/v1/intents/{ID}/content", TokenScope.AUDIT, None, 404),
    ("POST", f"/v1/intents/{ID}/cancel", TokenScope.OPERATE, NOTE, 404),
    ("POST", f"/v1/intents/{ID}/resolve", TokenScope.OPERATE, RESOLUTION, 404),
    ("POST", f"/v1/intents/{ID}/retry", TokenScope.OPERATE, NOTE, 404),
    ("POST", f"/v1/intents/{ID}/retry-now", TokenScope.OPERATE, NOTE, 404),
    ("POST", "/v1/redrive", TokenScope.OPERATE, FILTER, 200),
    ("GET", "/v1/streams", TokenScope.READ, None, 200),
    ("GET", "/v1/stream?target=sms&stream=s", TokenScope.READ, None, 404),
    ("POST", "/v1/stream/pause", TokenScope.OPERATE, STREAM, 404),
    ("POST", "/v1/stream/resume", TokenScope.OPERATE, STREAM, 404),
    ("POST", "/v1/stream/skip", TokenScope.OPERATE, STREAM | {"intent_id": ID}, 404),
    ("GET", "/v1/targets", TokenScope.READ, None, 200),
    ("GET", "/v1/instances", TokenScope.READ, None, 200),
    ("GET", "/v1/leases", TokenScope.READ, None, 200),
    ("GET", "/v1/stats", TokenScope.READ, None, 200),
    ("GET", "/v1/events", TokenScope.READ, None, 200),
    ("GET", "/metrics", TokenScope.READ, None, 200),
]
HEALTH = [("GET", "/healthz"), ("GET", "/readyz")]
OPEN = [*HEALTH, ("GET", "/openapi.json"), ("GET", "/")]


async def status(client, method, path, body):
    async with client.stream(method, path, json=body) as response:
        return response.status_code


def test_every_route_is_in_this_table(openapi):
    described = {
        (method.upper(), path)
        for path, operations in openapi["paths"].items()
        for method in operations
    }
    here = {
        (method, path.partition("?")[0].replace(ID, "{intent_id}")) for method, path, *_ in ROUTES
    }
    assert described == here | {*HEALTH}


async def test_each_scope_permits_only_its_own_routes(api):
    for scope in TokenScope:
        client = await api.client(scope)
        for method, path, needed, body, answer in ROUTES:
            expected = answer if scope is needed else 403
            assert await status(client, method, path, body) == expected, (scope, method, path)


async def test_only_root_health_and_openapi_need_no_token(api):
    revoked = make_token(api.database, *TokenScope, name="revoked")
    await api.service.tokens.step()
    api.database.owner_execute("SELECT leasehold.revoke_token('revoked', 'test')")
    await api.service.tokens.step()
    for token in (None, new_token(), revoked, "lh_", "x" * 5000):
        client = await api.with_token(token)
        for method, path, *_ in ROUTES:
            response = await client.request(method, path)
            problem(response, 401, "unauthenticated")
            assert response.headers["www-authenticate"] == "Bearer"
        for method, path in OPEN:
            assert (await client.request(method, path)).status_code == 200


async def test_malformed_authorization_is_refused(api):
    token = make_token(api.database, "ingest")
    await api.service.tokens.step()
    client = await api.with_token(None)
    for form in ("Basic {}", "{}", "Bearer", "Bearer {} x", "Token {}", "Bearer {},{}"):
        headers = {"Authorization": form.replace("{}", token)}
        problem(await client.post("/v1/intents", json=SMS, headers=headers), 401, "unauthenticated")


async def test_two_authorization_headers_are_refused(api):
    token = make_token(api.database, "ingest")
    await api.service.tokens.step()
    client = await api.with_token(None)
    headers = [("Authorization", f"Bearer {token}"), ("Authorization", f"Bearer {new_token()}")]
    problem(await client.post("/v1/intents", json=SMS, headers=headers), 400, "bad_request")


async def test_token_for_other_targets_cannot_enqueue(api):
    client = await api.client("ingest", targets=["mail"])
    problem(await client.post("/v1/intents", json=SMS), 403, "forbidden")
    assert api.intents() == 0


async def test_revoked_token_is_refused_after_the_next_refresh(api):
    client = await api.client("ingest", name="leaver")
    assert (await client.post("/v1/intents", json=SMS)).status_code == 201
    api.database.owner_execute("SELECT leasehold.revoke_token('leaver', 'test')")
    await api.service.tokens.step()
    problem(await client.post("/v1/intents", json=SMS), 401, "unauthenticated")
    assert api.intents() == 1


async def test_without_auth_everything_is_permitted(database, outbox):
    outbox.publish("sms")
    settings = WebSettings(instance_id="test", log_level="warning", is_open=True)
    async with serve(database, settings) as api:
        client = await api.with_token(None)
        for method, path, _, body, answer in ROUTES:
            assert await status(client, method, path, body) == answer


HOSTS = [
    *("localhost", "LOCALHOST:8080", "127.0.0.1", "127.3.2.1:65535", "[::1]", "[::1]:8080"),
    *("[0:0:0:0:0:0:0:1]",),
]
OTHER_HOSTS = [
    *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("10.0.0.1", "0.0.0.0", "[::]", "[::2]", "2130706433", "0x7f.1", "127.1", "", "localhost:x"),
    *("localhost@evil.example", "[::1", "::1", "localhost, evil.example", "localhost."),
]


async def test_without_auth_only_loopback_hosts_are_answered(database, outbox):
    """A web page can make its own host name resolve to this machine."""
    outbox.publish("sms")
    settings = WebSettings(instance_id="test", log_level="warning", is_open=True)
    async with serve(database, settings) as api:
        client = await api.with_token(None)
        for host in HOSTS:
            response = await client.get("/v1/intents", headers={"Host": host})
            assert response.status_code == 200, host
        for host in OTHER_HOSTS:
            for path in ("/v1/intents", "/v1/stats"):
                problem(await client.get(path, headers={"Host": host}), 421, "misdirected")
        problem(
            await client.post("/v1/intents", json=SMS, headers={"Host": "evil.example"}),
            421,
            "misdirected",
        )
        # These reveal nothing, and a load balancer may use any name for us.
        assert (await client.get("/readyz", headers={"Host": "x"})).status_code == 200
        assert api.intents() == 0


class Store:
    """A store with these tokens."""

    def __init__(self, tokens):
        self.tokens = tokens

    async def read_active_tokens(self):
        return self.tokens


async def test_all_are_refused_if_tokens_could_not_be_read_for_a_minute():
    now = 0.0
    token = new_token()
    cache = TokenCache(Store({token_hash(token): "known"}), clock=lambda: now)
    authorization = f"Bearer {token}".encode()
    with pytest.raises(Problem, match="could not be read"):
        cache.authenticate(authorization)
    await cache.step()
    assert cache.authenticate(authorization) == "known"
    now = STALE_SECONDS + 1
    with pytest.raises(Problem, match="could not be read"):
        cache.authenticate(authorization)


async def test_token_is_looked_up_by_its_whole_hash_however_much_of_it_is_right():
    """What is looked up is a SHA-256 hash: nearly right tokens are as far away as any other."""
    token = new_token()
    looked_up = []

    class Recorded(dict):
        def get(self, key):
            looked_up.append(key)
            return super().get(key)

    cache = TokenCache(Store(Recorded({token_hash(token): "known"})))
    await cache.step()
    for length in range(3, len(token)):
        wrong = token[:length] + "!" * (len(token) - length)
        with pytest.raises(Problem, match="unknown or revoked"):
            cache.authenticate(f"Bearer {wrong}".encode())
    assert {len(key) for key in looked_up} == {32}
    assert token_hash(token) not in looked_up
    assert len({key[:4] for key in looked_up}) == len(looked_up)
