"""What HAProxy bounds for an instance: time for a head, header bytes, clients that do not read."""

from __future__ import annotations

import asyncio
import csv
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.deploy.balanced import DEPLOY, INSTANCES, free_ports, start_haproxy, states
from tests.support.database import Database
from tests.support.engine import until
from tests.support.hostile_requests import GOOD, HOST, TOKEN, TOLERATED, all_hostile, posting
from tests.support.outbox import Outbox
from tests.support.raw_http import connect, exchange, statuses
from tests.support.serve_process import Serving

pytestmark = [pytest.mark.program("haproxy"), pytest.mark.one_server]

HEAD_SECONDS = 10
QUIET_SECONDS = 0.5
CLOSE = b"Connection: close\r\n\r\n"
NOT_HTTP = [case for case in all_hostile() if not case.is_http]


class Proxied:
    """HAProxy in front of one instance, and the instance's database."""

    def __init__(self, address, folder, token, database):
        self.address = address
        self._folder = folder
        self._token = token.encode()
        self._connection = psycopg.connect(database.url, autocommit=True)

    def send(self, data, **more):
        return exchange(self.address, data.replace(b"{token}", self._token), **more)

    def written(self):
        return self._connection.execute("SELECT count(*) FROM leasehold.intents").fetchone()[0]

    def clients(self):
        """How many connections clients have to HAProxy."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self._folder / "admin.sock"))
            admin.sendall(b"show stat\n")
            text = b"".join(iter(lambda: admin.recv(65536), b"")).decode()
        rows = csv.DictReader(text.removeprefix("# ").splitlines())
        [found] = [row for row in rows if (row["pxname"], row["type"]) == ("leasehold", "0")]
        return int(found["scur"])

    def close(self):
        self._connection.close()


@contextmanager
def haproxy(instance, folder, **more):
    ports = free_ports(2)
    process = start_haproxy(
        folder, [*ports, *[urlsplit(instance.address_url).port] * INSTANCES], **more
    )
    proxied = Proxied(("127.0.0.1", ports[0]), folder, instance.token, instance.database)
    try:
        asyncio.run(until(lambda: set(states(folder).values()) == {"UP"}))
        yield proxied
    finally:
        proxied.close()
        process.kill()
        process.wait(10)


@pytest.fixture(scope="module")
def instance(server, tmp_path_factory):
    database = Database(server, server.create_database())
    Outbox(database).publish("sms")
    serving = Serving(database, tmp_path_factory.mktemp("limits") / "log", "--no-execute")
    serving.address_url = asyncio.run(serving.url())
    serving.database = database
    yield serving
    serving.close()
    database.close()


@pytest.fixture(scope="module")
def proxied(instance, tmp_path_factory):
    """Behind HAProxy with the configuration as it is."""
    with haproxy(instance, tmp_path_factory.mktemp("haproxy")) as proxied:
        yield proxied


INTERNAL = {
    "as it is": "/{0}{1}",
    "with a query": "/{0}{1}?x=/healthz",
    "first letter encoded": "/%{2:02x}{1}",
    "in capitals": "/%{2:02X}{1}",
    "encoded twice": "/%25{2:02x}{1}",
    "slash encoded": "/%2f{0}{1}",
    "slash repeated": "//{0}{1}",
    "slash behind": "/{0}{1}/",
    "dot segment": "/./{0}{1}",
    "encoded dot segments": "/v1/%2e%2e/{0}{1}",
    "parameter": "/{0}{1};x",
    "fragment": "/{0}{1}#x",
    "encoded fragment": "/{0}{1}%23x",
    "encoded NUL": "/{0}{1}%00",
    "encoded line feed": "/{0}{1}%0a",
    "encoded line feed and letter": "/%{2:02x}{1}%0A",
    "encoded line end": "/{0}{1}%0d%0a",
    "encoded tab": "/{0}{1}%09",
    "absolute": "http://x/{0}{1}",
    "absolute and encoded": "http://x/%{2:02x}{1}",
}


@pytest.mark.parametrize("path", ["readyz", "metrics"])
@pytest.mark.parametrize("name", INTERNAL)
def test_no_spelling_of_an_internal_path_passes_haproxy(proxied, name, path):
    url = INTERNAL[name].format(path[0], path[1:], ord(path[0])).encode()
    for method in (b"GET ", b"HEAD "):
        answer = proxied.send(method + url + b" HTTP/1.1\r\n" + HOST + TOKEN + CLOSE)
        assert statuses(answer) in ([400], [404]), answer
        assert b"leasehold_" not in answer
        assert b"scopes" not in answer


def test_head_must_arrive_in_time(proxied):
    heads = [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\n" + HOST, posting(GOOD)[:40]]

    def wait_for(head):
        began_at = time.monotonic()
        answer = proxied.send(head, quiet_seconds=HEAD_SECONDS + 20)
        return statuses(answer), time.monotonic() - began_at

    with ThreadPoolExecutor(len(heads)) as pool:
        for found, seconds in pool.map(wait_for, heads):
            assert found == [408]
            assert HEAD_SECONDS - 1 < seconds < HEAD_SECONDS + 10


def test_head_must_not_be_too_large(proxied):
    for headers in (b"X: " + b"y" * 45_000 + b"\r\n", b"X: y\r\n" * 200):
        answer = proxied.send(b"GET /healthz HTTP/1.1\r\n" + HOST + headers + b"\r\n")
        assert statuses(answer) in ([400], [431])
    endless = b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 1_000_000
    assert statuses(proxied.send(endless)) in ([400], [431], [])


def test_what_is_not_http_is_refused_or_one_request(proxied):
    before, accepted = proxied.written(), 0
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(
            lambda case: proxied.send(case.data, responses=2, quiet_seconds=QUIET_SECONDS),
            NOT_HTTP,
        )
        for case, answer in zip(NOT_HTTP, answers, strict=True):
            found = statuses(answer)
            assert all(status < 500 for status in found), (case.name, answer)
            assert found.count(201) <= 1, (case.name, answer)
            # HAProxy makes valid HTTP of some, such as of a header in two lines.
            accepted += found.count(201)
    assert proxied.written() == before + accepted


@pytest.mark.parametrize("name", TOLERATED)
def test_what_an_instance_tolerates_is_one_request_for_both(proxied, name):
    before = proxied.written()
    answer = proxied.send(TOLERATED[name], responses=2, quiet_seconds=QUIET_SECONDS)
    assert len(statuses(answer)) == 1
    assert proxied.written() == before + statuses(answer).count(201)


def test_idle_connections_do_not_keep_a_newcomer_out(instance, tmp_path):
    """With 20 connections instead of 4,000."""
    text = (DEPLOY / "haproxy.cfg").read_text()
    assert (text.count("maxconn 4000\n"), text.count("fe_conn gt 2000 ")) == (1, 1)
    config = tmp_path / "haproxy.cfg"
    config.write_text(text.replace("maxconn 4000", "maxconn 20").replace("gt 2000", "gt 10"))
    with haproxy(instance, tmp_path, config=config) as proxied, ExitStack() as kept:
        for number in range(60):
            client = kept.enter_context(connect(proxied.address))
            client.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            answer = client.recv(65536)
            assert statuses(answer) == [200]
            if number >= 10:
                assert b"connection: close" in answer
                assert client.recv(1) == b""
        assert proxied.clients() == 10


def test_client_that_does_not_read_is_disconnected_and_logged_without_traceback(instance, tmp_path):
    """With one second instead of a minute, and responses that no buffer holds."""
    text = (DEPLOY / "haproxy.cfg").read_text()
    assert text.count("    timeout client 60s\n") == 1
    config = tmp_path / "haproxy.cfg"
    config.write_text(text.replace("timeout client 60s", "timeout client 1s"))
    with haproxy(instance, tmp_path, config=config) as proxied, connect(proxied.address) as client:
        request = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
        client.settimeout(0.2)
        with suppress(OSError):
            for _ in range(500):
                client.sendall(request * 20)
        asyncio.run(until(lambda: proxied.clients() == 0))
    log = instance.log.read_text()
    assert "/openapi.json" in log
    assert "Traceback" not in log
    assert "request_failed" not in log
