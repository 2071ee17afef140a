"""A worker and a server write nothing but JSON lines at debug level, and no secret or content."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import socket
from collections import Counter

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.elections import ROW_LEASE_SETTINGS
from tests.support.engine import until
from tests.support.http_gateways import RawServer, abort
from tests.support.serve_process import Serving

DATABASE_PASSWORD = "Dq8-zV/41+pw"
TOKEN = "kT5-uX/77+tk"
LOGIN = "bG9naW46d1ktNDQvKzlwdw=="  # login:wY-44/+9pw
SIGNING = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PROVIDER_TOKEN = "pR2-mN/63+pt"
SHOP_PASSWORD = "sH6-kJ/52+sp"
SECRETS = [DATABASE_PASSWORD, TOKEN, LOGIN, "wY-44/+9pw", SIGNING, PROVIDER_TOKEN, SHOP_PASSWORD]
PAYLOAD_TEXT, PAYLOAD_NUMBER = "the text of a customer", 4917610010999
BODY_TEXT = "the bytes of a customer"
CONTENT = [PAYLOAD_TEXT, str(PAYLOAD_NUMBER), BODY_TEXT]
INTENTS = [
    {
        "payload": {"text": PAYLOAD_TEXT, "number": PAYLOAD_NUMBER},
        "metadata": {"customer": PAYLOAD_TEXT},
    },
    {"body": base64.b64encode(BODY_TEXT.encode()).decode(), "content_type": "text/plain"},
]
ENVIRONMENT = {
    "TEST_HEADER": f"Bearer {TOKEN}",
    "TEST_LOGIN": f"Basic {LOGIN}",
    "TEST_SIGNING": f"whsec_{SIGNING}",
    "PROVIDER_TOKEN": PROVIDER_TOKEN,
    "SHOP_DATABASE_URL": f"postgresql://shop:{SHOP_PASSWORD}@db.example/shop",
}
BATCH = INTENTS[1] | {"metadata": {"batch_id": "ab" * 64, "customer": PAYLOAD_TEXT}}
FUNCTIONS = "tests.support.leaky_gateways"


class EchoServer(RawServer):
    """Fails as the path says, and echoes the whole request wherever it can."""

    def __init__(self):
        super().__init__(self._answer)

    async def _answer(self, _reader, writer):
        request = self.requests[-1]
        path = request.split(b" ")[1].decode().strip("/").partition("/")[0]
        if path == "silent":
            await asyncio.Event().wait()
        if path == "reset":
            abort(writer)
            return
        writer.write(MALFORMED[path](request) if path in MALFORMED else _echo(int(path), request))
        await writer.drain()
        if path in {"partial", "head"}:
            writer.close()


MALFORMED = {
    "garbage": lambda request: b"SSH-2.0 " + request,
    "header": lambda request: b"HTTP/1.1 200 OK\r\nX Y\x00" + _header(request) + b": 1\r\n\r\n",
    "partial": lambda request: b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + request,
    "head": lambda request: b"HTTP/1.1 200 OK\r\nX-Echo: " + _header(request),
    "long": lambda request: _response(200, request * 1000),
    "gzip": lambda request: _response(200, request, b"Content-Encoding: gzip\r\n"),
    "redirect": lambda request: _response(
        302, request, b"Location: /" + _header(request) + b"\r\n"
    ),
}


def _echo(status, request):
    text = request.decode("latin-1")
    said = {"reference": _header(request).decode(), "reason": text, "text": text}
    return _response(status, json.dumps(said).encode())


def _header(request):
    return re.search(rb"authorization: ([^\r]*)", request, re.IGNORECASE)[1]


def _response(status, body, headers=b""):
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n".encode()
    return head + headers + b"\r\n" + body


HTTP = [
    "silent", "reset", *MALFORMED,
    "200", "202", "401", "409", "422", "429", "500", "503",
]  # fmt: skip
PYTHON = [
    "fail", "fail_chained", "fail_in_group", "quote_content", "not_sent", "not_sent_at_length",
    "unprintable", "endless", "time_out", "answer_nonsense", "accepted", "rejected", "retryable",
    "unknown", "submitted", "forget_coroutine", "fail_in_background", "fail_in_thread",
    "fail_when_freed", "fail_plainly", "leave",
]  # fmt: skip
LEDGER = ["silent", "reset", "garbage", "partial", "long", "200", "202", "400", "429", "500"]
# The targets whose lookup fails too, and the reasons that must have occurred.
LOOKUPS_FAIL = [
    "http-silent", "http-reset", "http-garbage", "http-header", "http-partial", "http-head",
    "http-long", "python-fail", "python-quote-content", "python-unprintable", "python-time-out",
    "leader-http", "leader-python", "stream-http", "stream-python", "stream-ledger",
    "ledger-silent", "ledger-reset", "ledger-garbage", "ledger-partial", "ledger-long",
]  # fmt: skip
# No call of theirs is made, or decides anything: their intents are deferred.
DEFERRED = ["http-401", "http-refused", "http-unresolved", "http-tls", "http-forbidden"]
REASONS = {
    "connect", "connection_lost", "exception", "forbidden_address", "response_too_long",
    "response_unreadable", "timeout",
}  # fmt: skip
SCOPES = {"leader": "cluster", "stream": "stream"}
NOT_SERVED = {
    "python-missing": "no_such_module:send",
    "python-broken": "tests.support.unimportable_gateways:send",
    "python-nothing": f"{FUNCTIONS}:nothing",
}


@pytest.fixture
async def echo_server():
    async with EchoServer().running() as server:
        yield server


@pytest.fixture
def environment(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def database_url(database):
    """A URL with a password that is not like anything else."""
    name = f"login_{os.getpid()}"
    database.execute(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{DATABASE_PASSWORD}'")
    server = conninfo_to_dict(database.url)
    yield make_conninfo(database.url, **server | {"user": name, "password": DATABASE_PASSWORD})
    database.execute(f"DROP ROLE {name}")


def http_terms(url, **changes):
    secrets = {"Authorization": "TEST_HEADER", "X-Login": "TEST_LOGIN"}
    terms = {"kind": "http", "url": url, "allow_private": True, "lookup_url": f"{url}/{{key}}"}
    return terms | {"secret_headers": secrets, "signing_secret_env": "TEST_SIGNING"} | changes


def ledger_terms(url):
    secrets = {"Authorization": "TEST_HEADER", "X-Login": "TEST_LOGIN"}
    bounds = {"allow_private": True, "response_bytes_max": 10_000}
    return {"kind": "ledger", "url": url, "secret_headers": secrets, **bounds}


def python_terms(path):
    return {"kind": "python", "function": path, "lookup": path}


def gateways(echo_server):
    """Return a gateway for each failure, by the name of its target."""
    url = echo_server.url.rstrip("/")
    nobody = socket.create_server(("127.0.0.1", 0))
    closed = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    nobody.close()
    port = url.rpartition(":")[2]
    named = {f"http-{path}": http_terms(f"{url}/{path}") for path in HTTP}
    named |= {
        "http-refused": http_terms(closed),
        "http-unresolved": http_terms("https://no-such-host.invalid"),
        "http-tls": http_terms(f"https://127.0.0.1:{port}"),
        "http-forbidden": http_terms(f"https://localhost:{port}", allow_private=False),
    }
    for name in PYTHON:
        named[f"python-{name.replace('_', '-')}"] = python_terms(f"{FUNCTIONS}:{name}")
    for path in LEDGER:
        named[f"ledger-{path}"] = ledger_terms(f"{url}/{path}")
    for scope in ("leader", "stream"):
        named[f"{scope}-http"] = http_terms(f"{url}/reset")
        named[f"{scope}-python"] = python_terms(f"{FUNCTIONS}:fail_chained")
        named[f"{scope}-ledger"] = ledger_terms(f"{url}/reset")
    not_served = {name: python_terms(path) for name, path in NOT_SERVED.items()}
    not_served["http-unset"] = http_terms(url, secret_headers={"Authorization": "TEST_UNSET"})
    not_served["http-metadata"] = http_terms("https://169.254.169.254/")
    return named, not_served


def publish_all(engine, echo_server):
    """Publish each gateway, and enqueue a payload and a body for it; return the ids by target."""
    served, not_served = gateways(echo_server)
    for target, gateway in (served | not_served).items():
        engine.publish(
            target,
            "lookup",
            scope=SCOPES.get(target.partition("-")[0], "item"),
            gateway=gateway,
            lease_seconds=30,
            quarantine_seconds=60,
            call_timeout_seconds=5,
            connect_timeout_seconds=4,
            retry={"first_seconds": 3600, "longest_seconds": 3600},
        )
    entries = [
        entry | {"target": target} | ({"stream": f"s{number}"} if "stream-" in target else {})
        for target in served | not_served
        for number, entry in enumerate([*INTENTS, BATCH])
    ]
    engine.outbox.enqueue_entries(entries)
    return list(served), list(not_served)


async def until_called(engine, worker, targets):
    """Wait until each intent has been submitted, or another of its target was deferred."""

    def missing():
        rows = engine.database.execute(
            "SELECT target FROM leasehold.intents i WHERE target = ANY (%s) AND NOT EXISTS"
            " (SELECT FROM leasehold.outbox_attempts a WHERE a.intent_id = i.intent_id)"
            " AND NOT EXISTS (SELECT FROM leasehold.outbox_pending p"
            "   WHERE p.target = i.target AND p.target = ANY (%s)"
            "     AND p.deferred_since IS NOT NULL)",
            [targets, DEFERRED],
        )
        return sorted({row["target"] for row in rows})

    while left := missing():
        # One after the other, since many calls end only by their timeouts.
        await until(
            lambda left=left: engine.assert_none_failed() and missing() != left,
            context=lambda: [missing(), worker.log.read_text()],
        )


async def until_looked_up(engine, worker, targets):
    """Wait until the worker has tried to look up the intents in doubt, and has logged that."""

    def missing():
        engine.outbox.make_due()
        lines = worker.lines("lookup_failed") + worker.lines("outcome_unknown")
        counts = Counter(line["target"] for line in lines)
        return [target for target in targets if counts[target] < 3]

    while left := missing():
        await until(
            lambda left=left: missing() != left,
            context=lambda: [missing(), worker.log.read_text()],
        )


def assert_clean(log, *more):
    """Require JSON lines with a level and an event, and nothing that must not be told."""
    text = log.read_text()
    told = [text]
    for line in text.splitlines():
        assert line.startswith("{"), line
        entry = json.loads(line)
        assert entry["event"], line
        assert entry["level"], line
        told += map(str, entry.values())
    encoded = [base64.b64encode(one.encode()).decode().rstrip("=") for one in SECRETS]
    for hidden in (*SECRETS, *encoded, *CONTENT, *more):
        found = [one for one in told if hidden in one]
        assert not found, (hidden, found[-1])


def stored(database):
    """Return everything in the tables except the intents, as text."""
    tables = database.execute(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables"
        " WHERE schemaname LIKE 'leasehold%' AND tablename <> 'intents'"
    )
    for table in tables:
        for row in database.execute(f"SELECT t::text AS row FROM {table['name']} AS t"):
            yield row["row"]


@pytest.mark.usefixtures("environment")
async def test_worker_tells_nothing_about_failed_calls_but_json_lines_without_secrets(
    engine, echo_server, database, database_url
):
    served, not_served = publish_all(engine, echo_server)
    worker = engine.worker(
        url=database_url,
        log_level="debug",
        concurrency="200",
        # Longer than a database call may take, and at most half of a quarantine.
        **(ROW_LEASE_SETTINGS | {"cluster_lease_seconds": "28"}),
    )
    await until_called(engine, worker, served)
    await until_looked_up(engine, worker, LOOKUPS_FAIL)
    for _ in range(2):
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s",
            [conninfo_to_dict(database_url)["user"]],
        )
        await asyncio.sleep(0.3)
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    refused = {line["target"] for line in worker.lines("target_refused")}
    assert refused == set(not_served)
    reasons = {line["reason"] for line in worker.lines() if "reason" in line}
    assert reasons >= REASONS
    assert_clean(worker.log)
    rows = list(stored(database))
    assert len(rows) > 2 * len(served)
    for secret in SECRETS:
        assert not [row for row in rows if secret in row]


def requests(token):
    """Return requests that are accepted, refused or fail; each contains what must not be told."""
    good = {"target": "sms", "payload": {"text": PAYLOAD_TEXT, "number": PAYLOAD_NUMBER}}
    body = json.dumps(good)
    json_type = {"Content-Type": "application/json"}
    path = "/v1/intents"
    yield "POST", path, {"json": good}
    yield "POST", path, {"json": INTENTS[1] | {"target": "sms"}}
    yield "POST", f"{path}?wait_seconds=1", {"json": good}
    yield "POST", f"{path}:batch", {"json": {"intents": [good, {"target": PAYLOAD_TEXT}]}}
    yield "POST", path, {"json": good | {"priority": PAYLOAD_TEXT}}
    yield "POST", path, {"json": good | {"target": PAYLOAD_TEXT.replace(" ", "-")}}
    yield "POST", path, {"content": body[:-3], "headers": json_type}
    yield "POST", path, {"content": body, "headers": {"Content-Type": "text/plain"}}
    yield "POST", path, {"json": good, "headers": {"Authorization": f"Bearer {token}x"}}
    yield "POST", path, {"json": good, "headers": {"Authorization": BODY_TEXT}}
    yield "POST", path, {"json": good, "headers": {"Idempotency-Key": PAYLOAD_TEXT}}
    yield "POST", path, {"json": good, "headers": {"X-Request-Id": token}}
    yield "GET", f"{path}?token={token}&text={PAYLOAD_TEXT}", {}
    yield "GET", f"/{token}", {}
    yield "GET", f"{path}/{token}", {}
    yield "GET", f"{path}?target=sms", {}
    yield "GET", "/v1/stats", {}
    yield "GET", "/readyz", {}


async def send_all(client, token):
    statuses = [
        (await client.request(method, path, **more)).status_code
        for method, path, more in requests(token)
    ]
    return set(statuses)


@pytest.mark.usefixtures("environment")
async def test_server_writes_nothing_but_json_lines_without_secrets_and_content(
    engine, database, database_url, tmp_path
):
    engine.publish("sms", gateway=python_terms(f"{FUNCTIONS}:fail_chained"), guarantee="lookup")
    one = Serving(database, tmp_path / "serve.log", url=database_url, log_level="debug")
    try:
        async with await one.client() as client:
            assert {200, 201, 400, 401, 404, 422} <= await send_all(client, one.token)
            login = conninfo_to_dict(database_url)["user"]
            # A status that does not exist is an error that nobody expects.
            [finished] = engine.outbox.enqueue(1, **INTENTS[0], delay_seconds=60)
            engine.outbox.call("operator", "cancel_intent", finished, "ann", "a test")
            database.execute(
                "CREATE OR REPLACE FUNCTION leasehold.final_status(p_state text, p_reason text)"
                " RETURNS text LANGUAGE sql AS $$ SELECT 'no-status' $$"
            )
            assert (await client.get(f"/v1/intents/{finished}")).status_code == 500
            # PostgreSQL quotes the row that a constraint refuses.
            database.execute(
                "ALTER TABLE leasehold.intents ADD CHECK (created_at < to_timestamp(0)) NOT VALID"
            )
            assert 500 in await send_all(client, one.token)
            for function in ("list_intents", "enqueue_intents", "enqueue_intent"):
                database.execute(f"ALTER FUNCTION leasehold.{function} RENAME TO {function}_gone")
            await send_all(client, one.token)
            database.execute(f"ALTER ROLE {login} NOLOGIN")
            database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [login]
            )
            assert 503 in await send_all(client, one.token)
            database.execute(f"ALTER ROLE {login} LOGIN")
        one.send(signal.SIGTERM)
        assert await one.ended() == 0
    finally:
        one.close()
    assert one.lines("request_failed"), "an error with its traceback"
    assert_clean(one.log, one.token)
