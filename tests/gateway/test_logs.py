"""Every line that a gateway logs names the attempt, goes through our logs, and leaks nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from itertools import product

import pytest

from leasehold.domain.contract import Contract
from leasehold.domain.intent import JsonDocument
from leasehold.gateway.python.terms import PythonTerms
from leasehold.gateway.registry import open_gateway
from leasehold.observe.traces import new_trace
from tests.support.http_gateways import (
    RawServer,
    abort,
    http_gateway,
    ledger_gateway,
    make_batch,
    make_submission,
)
from tests.support.log_stream import log_stream
from tests.support.passing_time import pass_time

FUNCTIONS = "tests.unit.gateway.gateway_functions"
PAYLOAD = "the payload of a customer"
SECRET = "Bearer hunter2"
TRACE = new_trace()


@pytest.fixture
def stream():
    with log_stream() as stream:
        yield stream


def submission():
    return make_submission(
        attempt_no=3,
        worker_id="worker-7",
        trace=TRACE,
        payload=JsonDocument(json.dumps({"text": PAYLOAD}).encode()),
    )


def batch():
    return make_batch(
        "a",
        attempt_no=3,
        worker_id="worker-7",
        trace=TRACE,
        body=PAYLOAD.encode(),
    )


def http(url, **changes):
    return http_gateway(
        url,
        **{
            "lookup_url": f"{url}{{key}}",
            "secret_headers": {"Authorization": "TOKEN"},
            "environment": {"TOKEN": SECRET},
        }
        | changes,
    )


def ledger(url, **changes):
    return ledger_gateway(
        url,
        **{
            "secret_headers": {"Authorization": "TOKEN"},
            "environment": {"TOKEN": SECRET},
        }
        | changes,
    )


# Longer than any call may take.
LONG_SECONDS = 10_000


async def lose_connection(_reader, writer):
    abort(writer)


async def stay_silent(_reader, _writer):
    pass_time(LONG_SECONDS)
    await asyncio.sleep(LONG_SECONDS)


async def never_return(_submission):
    await stay_silent(None, None)


async def answer_garbage(_reader, writer):
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    await writer.drain()


async def answer_too_much(_reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000)
    await writer.drain()


async def call_http(act, asked, **changes):
    async with RawServer(act).running() as server, http(server.url, **changes) as gateway:
        if asked == "submit_many":
            return await gateway.submit_many([submission(), submission()])
        return await getattr(gateway, asked)(submission())


async def call_ledger(act, asked, *batches, **changes):
    async with RawServer(act).running() as server, ledger(server.url, **changes) as gateway:
        return await ask_ledger(gateway, asked, *batches)


async def ask_ledger(gateway, asked, *batches):
    return await getattr(gateway, f"{asked}_many")(batches or [batch(), make_batch("b")])


async def call_function(function, asked, **changes):
    path = function if ":" in function else f"{FUNCTIONS}:{function}"
    terms = PythonTerms(function=path, lookup=path)
    contract = Contract(
        target="sms",
        scope="item",
        guarantee="lookup",
        gateway=terms,
        **changes,
    )
    return await getattr(open_gateway(contract, environment={}), asked)(submission())


async def call_nobody(asked):
    async with http("http://127.0.0.1:9/") as gateway:
        return await getattr(gateway, asked)(submission())


async def call_no_ledger(asked):
    async with ledger("http://127.0.0.1:9/") as gateway:
        return await ask_ledger(gateway, asked)


async def call_forbidden_ledger(asked):
    async with ledger("https://localhost/", allow_private=False) as gateway:
        return await ask_ledger(gateway, asked)


async def call_forbidden_address(asked):
    async with http("https://localhost/", allow_private=False) as gateway:
        return await getattr(gateway, asked)(submission())


FAILURES = {
    "connection lost": lambda asked: call_http(lose_connection, asked),
    "timeout": lambda asked: call_http(stay_silent, asked),
    "garbage": lambda asked: call_http(answer_garbage, asked),
    "too long": lambda asked: call_http(answer_too_much, asked, response_bytes_max=1000),
    "connection refused": call_nobody,
    "forbidden address": call_forbidden_address,
    "connection to a ledger lost": lambda asked: call_ledger(lose_connection, asked),
    "timeout of a ledger": lambda asked: call_ledger(stay_silent, asked),
    "garbage of a ledger": lambda asked: call_ledger(answer_garbage, asked),
    "too long for a ledger": lambda asked: call_ledger(
        answer_too_much, asked, batch(), response_bytes_max=1000
    ),
    "connection to a ledger refused": call_no_ledger,
    "forbidden address of a ledger": call_forbidden_ledger,
    "function failed": lambda asked: call_function("failing", asked),
    "function timed out": lambda asked: call_function(f"{__name__}:never_return", asked),
    "function returned something else": lambda asked: call_function("chatty", asked),
}


OF_SEVERAL = ["connection lost", "timeout", "garbage", "too long"]


@pytest.mark.parametrize(
    ("failure", "asked"),
    [
        *product(FAILURES, ["submit", "lookup"]),
        *((failure, "submit_many") for failure in OF_SEVERAL),
    ],
)
async def test_line_about_a_failed_call_names_the_attempt_and_leaks_nothing(
    stream, capfd, failure, asked
):
    await FAILURES[failure](asked)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    lines = [line for line in lines if line["logger"].startswith("leasehold.gateway")]
    assert len(lines) == 1
    [line] = lines
    assert line["attempt_no"] == 3
    assert line["worker_id"] == "worker-7"
    assert line["trace_id"] == TRACE.trace_id
    assert line["intent_id"]
    assert line["target"] == "sms"
    assert line["level"] in {"warning", "error"}
    written = stream.getvalue() + "".join(capfd.readouterr())
    assert PAYLOAD not in written
    assert "hunter2" not in written


async def test_nothing_is_written_past_the_configured_logs(stream, capfd):
    await call_function("failing", "submit")
    assert capfd.readouterr() == ("", "")
    assert "half way through" in stream.getvalue()  # the traceback of the user's function


async def test_level_is_respected(stream):
    logging.getLogger().setLevel("CRITICAL")
    await call_function("failing", "submit")
    assert "outcome_unknown" not in stream.getvalue()
