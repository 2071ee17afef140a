"""The sandbox counts exactly, is bounded, and refuses bad settings with a reason."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from hashlib import sha512

import aiohttp
import pytest

from leasehold.domain.errors import InvalidArgument
from leasehold.sandbox import FaultSettings, Sandbox
from leasehold.sandbox.faults import Fault, FaultInjector

COMMAND = [sys.executable, "-c", "from leasehold.cli.main import app; app()", "sandbox"]


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


async def post(session, url, key="k", **headers):
    named = {"Idempotency-Key": key} | {n.replace("_", "-"): v for n, v in headers.items()}
    async with session.post(url, json={}, headers=named) as response:
        return response.status, await response.json()


async def get(session, url):
    async with session.get(url) as response:
        return response.status, await response.json()


async def test_faults_are_set_over_http_for_one_gateway_or_all(session):
    async with Sandbox() as sandbox:
        async with session.put(
            f"{sandbox.url}/faults?gateway=keyed", json={"refuse_rate": 1}
        ) as put:
            assert put.status == 200
        assert (await post(session, f"{sandbox.url}/keyed"))[0] == 503
        assert (await post(session, f"{sandbox.url}/blind"))[0] == 200
        async with session.put(f"{sandbox.url}/faults", json={"reject_rate": 1, "seed": 3}) as put:
            assert put.status == 200
        _, faults = await get(session, f"{sandbox.url}/faults")
        assert {one["reject_rate"] for one in faults.values()} == {1}


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("", b"no json"),
        ("", b"[]"),
        ("", b'{"reject_rate": 2}'),
        ("", b'{"reject_rate": 0.6, "refuse_rate": 0.6}'),
        ("", b'{"no_such_rate": 0.1}'),
        ("", b'{"latency_ms": -1}'),
        ("", b'{"seed": "x"}'),
        ("", b'{"invalid_rate": 0.6, "evict_rate": 0.6}'),
        ("", b'{"pending_max": 1.5}'),
        ("?gateway=other", b"{}"),
    ],
)
async def test_invalid_fault_settings_are_refused_and_change_nothing(session, query, body):
    async with Sandbox() as sandbox:
        async with session.put(f"{sandbox.url}/faults{query}", data=body) as put:
            assert put.status == 400
            assert (await put.json())["reason"]
        _, faults = await get(session, f"{sandbox.url}/faults")
        assert all(FaultSettings(**one) == FaultSettings() for one in faults.values())


async def test_requests_are_read_in_pages(session):
    async with Sandbox() as sandbox:
        for number in range(5):
            await post(session, f"{sandbox.url}/blind", key=f"k{number}", Leasehold_Attempt="1")
        _, first = await get(session, f"{sandbox.url}/requests?limit=3")
        _, second = await get(session, f"{sandbox.url}/requests?after=3&limit=3")
        assert [one["key"] for one in first["requests"] + second["requests"]] == [
            "k0",
            "k1",
            "k2",
            "k3",
            "k4",
        ]
        assert first["total"] == 5
        assert (await get(session, f"{sandbox.url}/requests?limit=0"))[0] == 400
        assert (await get(session, f"{sandbox.url}/requests?after=x"))[0] == 400


async def test_effects_name_the_doubled_keys(session):
    async with Sandbox() as sandbox:
        for key in ("a", "b", "b", "b"):
            await post(session, f"{sandbox.url}/blind", key=key)
            await post(session, f"{sandbox.url}/keyed", key=key)
        _, effects = await get(session, f"{sandbox.url}/effects")
        assert effects["gateways"]["blind"] == {
            "keys": 2,
            "effects": 4,
            "doubled_keys": 1,
            "doubled": ["b"],
        }
        assert effects["gateways"]["keyed"]["effects"] == 2
        assert (effects["effects"], effects["doubled_keys"]) == (6, 1)


@pytest.mark.parametrize(("gateway", "effects"), [("keyed", 1), ("fenced", 1), ("blind", 2)])
async def test_duplicated_request_is_handled_twice(session, gateway, effects):
    async with Sandbox() as sandbox:
        sandbox.set_faults(duplicate_rate=1)
        assert (await post(session, f"{sandbox.url}/{gateway}", Fencing_Token="1"))[0] == 200
        assert sandbox.effects(gateway).effects == effects
        assert [one.remark for one in sandbox.requests()] == ["", "duplicate"]


async def test_full_log_answers_507_without_an_effect(session):
    async with Sandbox(requests_max=3) as sandbox:
        answers = [
            (await post(session, f"{sandbox.url}/blind", key=str(number)))[0] for number in range(5)
        ]
        assert answers == [200, 200, 507, 507, 507]
        assert sandbox.effects().effects == len(sandbox.requests()) == 2


async def test_submission_without_a_key_or_a_needed_fencing_token_is_refused(session):
    async with Sandbox() as sandbox:
        async with session.post(f"{sandbox.url}/keyed") as response:
            assert response.status == 400
        assert (await post(session, f"{sandbox.url}/fenced"))[0] == 400
        assert (await get(session, f"{sandbox.url}/blind/k"))[0] == 404
        assert (await get(session, f"{sandbox.url}/nowhere"))[0] == 404
        assert sandbox.effects().effects == 0


async def test_fenced_gateway_refuses_a_token_lower_than_one_it_answered_with_503(session):
    async with Sandbox() as sandbox:
        url = f"{sandbox.url}/fenced"
        sandbox.set_faults("fenced", refuse_rate=1)
        assert (await post(session, url, Fencing_Token="12"))[0] == 503
        assert (await post(session, url, Fencing_Token="2"))[0] == 409
        sandbox.set_faults()
        status, body = await post(session, url, Fencing_Token="2")
        assert (status, body["highest"]) == (409, 12)
        assert sandbox.effects("fenced").effects == 0
        assert (await post(session, url, Fencing_Token="13"))[0] == 200


@pytest.mark.parametrize("reject_rate", [0, 1])
@pytest.mark.parametrize("token", ["6", "7", "8"])
async def test_fenced_gateway_answers_a_repeated_key_as_the_first(session, token, reject_rate):
    async with Sandbox() as sandbox:
        url = f"{sandbox.url}/fenced"
        sandbox.set_faults("fenced", reject_rate=reject_rate)
        first = await post(session, url, Fencing_Token="7")
        sandbox.set_faults()
        assert await post(session, url, Fencing_Token=token) == first
        assert sandbox.effects("fenced").effects == 1 - reject_rate


async def test_concurrent_repeats_of_a_key_have_one_effect_and_one_response(session):
    async with Sandbox() as sandbox:
        sandbox.set_faults("keyed", latency_ms=20, jitter=1)
        answers = await asyncio.gather(*(post(session, f"{sandbox.url}/keyed") for _ in range(50)))
        assert {status for status, _ in answers} == {200}
        assert {body["reference"] for _, body in answers} == {"keyed-1"}
        assert sandbox.effects().effects == 1
        assert sum(one.had_effect for one in sandbox.requests()) == 1


async def test_requests_are_also_appended_to_a_file(session, tmp_path):
    path = tmp_path / "requests.jsonl"
    async with Sandbox(log_path=path) as sandbox:
        await post(session, f"{sandbox.url}/keyed", key="a")
        [line] = path.read_text().splitlines()
        assert json.loads(line) == sandbox.requests()[0].as_json()


async def test_taken_port_and_unwritable_file_are_reported(tmp_path):
    async with Sandbox() as first:
        port = int(first.url.rsplit(":", 1)[1])
        with pytest.raises(InvalidArgument, match="another --port"):
            await Sandbox(port=port).start()
    with pytest.raises(InvalidArgument, match="cannot write"):
        Sandbox(log_path=tmp_path)


def test_same_seed_draws_the_same_faults_at_about_their_rates():
    settings = FaultSettings(reject_rate=0.2, lost_response_rate=0.3)
    injectors = (FaultInjector(settings, 7), FaultInjector(settings, 7))
    first, second = ([one.draw().fault for _ in range(2000)] for one in injectors)
    assert first == second
    assert 300 < first.count(Fault.REJECTED) < 500
    assert 500 < first.count(Fault.RESPONSE_LOST) < 700
    assert first.count(Fault.REFUSED) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_prints_its_url_first_and_stops_at_once(number):
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().strip()
        asyncio.run(hang(url))
        process.send_signal(number)
        _, errors = process.communicate(timeout=40)
        assert (process.returncode, errors) == (0, "")


async def hang(url):
    """Leave a request in progress, so that stopping cannot wait for it."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{url}/faults", json={"latency_ms": 60_000}):
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await post(session, f"{url}/keyed")


BATCH = {"Content-Type": "application/octet-stream"}


async def send_batch(session, sandbox, body=b"signed", **headers):
    url = f"{sandbox.url}/ledger/batches"
    async with session.post(url, data=body, headers=BATCH | headers) as response:
        return response.status, await response.json()


async def test_batch_of_any_client_is_found_by_the_link_that_it_got(session):
    async with Sandbox() as sandbox:
        status, document = await send_batch(session, sandbox)
        assert status == 202
        _, statuses = await get(session, document["link"])
        [batch] = statuses["data"]
        assert (batch["id"], batch["status"]) == (sha512(b"signed").hexdigest(), "COMMITTED")
        [submission, lookup] = sandbox.requests()
        assert submission.key == lookup.key == batch["id"]


async def test_what_is_no_batch_is_refused_by_the_ledger_without_an_effect(session):
    async with Sandbox() as sandbox:
        refused = [
            await send_batch(session, sandbox, **{"Content-Type": "application/json"}),
            await send_batch(session, sandbox, b""),
            await send_batch(session, sandbox, **{"Leasehold-Batch-Id": "short"}),
        ]
        assert [(status, said["error"]["code"]) for status, said in refused] == [
            (400, 42),
            (400, 34),
            (400, 60),
        ]
        for query in ("", "?id=", "?id=short", f"?id={'a' * 128},short"):
            status, said = await get(session, f"{sandbox.url}/ledger/batch_statuses{query}")
            assert (status, said["error"]["code"]) == (400, 60)
        assert sandbox.effects("ledger").effects == 0
        assert (await get(session, f"{sandbox.url}/ledger/batches"))[0] == 404


async def test_batch_that_arrives_twice_has_one_effect(session):
    async with Sandbox() as sandbox:
        sandbox.set_faults("ledger", duplicate_rate=1)
        assert (await send_batch(session, sandbox))[0] == 202
        assert [(one.had_effect, one.remark) for one in sandbox.requests()] == [
            (True, ""),
            (False, "duplicate"),
        ]


async def test_full_log_refuses_a_request_with_several_batches_as_a_whole(session):
    async with Sandbox(requests_max=5) as sandbox:
        three = ",".join(letter * 128 for letter in "abc")
        status, _ = await send_batch(session, sandbox, **{"Leasehold-Batch-Id": three})
        assert status == 507
        assert sandbox.effects().effects == len(sandbox.requests()) == 0
