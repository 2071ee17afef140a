"""The Python gateway calls a user's function within its timeout and never guesses an outcome."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from leasehold.domain.contract import Contract
from leasehold.domain.outcome import Accepted, Deferred, NotFound, Rejected, Retryable, Unknown
from leasehold.gateway.errors import GatewayMisconfigured, TrustEnded
from leasehold.gateway.python import Threads, gateway_function
from leasehold.gateway.python.terms import PythonTerms
from leasehold.gateway.registry import open_gateway
from tests.support.http_gateways import make_submission
from tests.unit.gateway import gateway_functions

MODULE = "tests.unit.gateway.gateway_functions"


def opened(function, *, lookup=None, call_timeout_seconds=5.0, threads=None):
    contract = Contract(
        target="sms",
        scope="item",
        guarantee="lookup" if lookup else "keyed",
        gateway=PythonTerms(
            function=f"{MODULE}:{function}", lookup=f"{MODULE}:{lookup}" if lookup else None
        ),
        call_timeout_seconds=call_timeout_seconds,
        connect_timeout_seconds=0.05,
    )
    return open_gateway(contract, environment={}, threads=threads)


async def test_function_gets_the_submission_and_returning_none_means_accepted():
    submission = make_submission()
    assert await opened("silent").submit(submission) == Accepted()
    assert gateway_functions.taken[-1] is submission


@pytest.mark.parametrize(
    ("function", "outcome"),
    [
        ("rejecting", Rejected(reason="closed")),
        ("sms", Accepted(reference="by name")),
        ("under_another_name", Accepted(reference="by name")),
        ("Provider.send", Accepted(reference="nested")),
        ("instance", Accepted(reference="object")),
        ("deferring", Deferred(reason="balance_too_low", retry_after_seconds=600)),
        ("deferring_without_a_reason", Deferred(reason="deferred")),
        ("not_sent", Retryable(retry_after_seconds=3, is_saturated=True, reason="busy")),
    ],
)
async def test_outcome_of_the_function_is_returned(function, outcome):
    assert await opened(function).submit(make_submission()) == outcome


async def test_function_that_did_not_send_for_want_of_trust_made_no_call():
    gateway = opened("careful")
    assert await gateway.submit(make_submission(permit=lambda: True)) == Accepted()
    with pytest.raises(TrustEnded):
        await gateway.submit(make_submission(permit=lambda: False))


@pytest.mark.parametrize(
    ("function", "reason"),
    [("failing", "exception"), ("own_timeout", "exception"), ("chatty", "no_outcome")],
)
async def test_outcome_is_unknown_if_the_function_raises_or_returns_nonsense(function, reason):
    outcome = await opened(function).submit(make_submission())
    assert isinstance(outcome, Unknown)
    assert outcome.reason == reason


@pytest.mark.parametrize(
    "function",
    [
        "exiting",
        "exiting_plainly",
        "interrupted",
        "interrupted_plainly",
        "cancelling_itself",
        "stopping_plainly",
    ],
)
async def test_function_that_ends_the_process_or_its_task_only_makes_its_outcome_unknown(function):
    gateway = opened(function, lookup=function)
    outcome = await gateway.submit(make_submission())
    assert (type(outcome), outcome.reason) == (Unknown, "exception")
    assert type(await gateway.lookup(make_submission())) is Unknown


def test_module_that_ends_the_process_when_it_is_imported_is_refused(tmp_path, monkeypatch):
    (tmp_path / "exits_at_once.py").write_text("raise SystemExit('use it as a script')")
    monkeypatch.syspath_prepend(tmp_path)
    gateway = PythonTerms(function="exits_at_once:send")
    contract = Contract(target="sms", scope="item", guarantee="keyed", gateway=gateway)
    with pytest.raises(GatewayMisconfigured, match="cannot be imported: SystemExit: use it as a"):
        open_gateway(contract, environment={})


async def test_function_that_does_not_return_times_out_as_unknown():
    outcome = await opened("slow", call_timeout_seconds=0.1).submit(make_submission())
    assert isinstance(outcome, Unknown)
    assert outcome.reason == "timeout"


async def test_concurrent_calls_each_have_the_full_timeout():
    gateway, clock = opened("slow", call_timeout_seconds=0.1), asyncio.get_running_loop().time

    async def lasting():
        began_at = clock()
        outcome = await gateway.submit(make_submission())
        return outcome.reason, clock() - began_at

    calls = []
    for _ in range(4):
        calls.append(asyncio.create_task(lasting()))
        await asyncio.sleep(0.04)  # the last two begin about when the first times out
    ended = await asyncio.gather(*calls)
    assert [reason for reason, _ in ended] == ["timeout"] * 4
    assert min(seconds for _, seconds in ended) >= 0.099


async def test_caller_is_not_cancelled_after_the_call_has_ended():
    gateway = opened("silent", call_timeout_seconds=2)
    assert isinstance(await gateway.submit(make_submission()), Accepted)
    await asyncio.sleep(2.1)  # past the timeout of the call


async def test_cancellation_is_passed_on():
    call = asyncio.create_task(opened("slow").submit(make_submission()))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_lookup_function_answers_lookups():
    submission = make_submission()
    answer = await opened("silent", lookup="found").lookup(submission)
    assert answer == Accepted(reference=str(submission.submission_key))
    assert await opened("silent", lookup="missing").lookup(submission) == NotFound()


@pytest.mark.parametrize("lookup", [None, "failing", "chatty", "silent"])
async def test_lookup_without_a_valid_answer_is_unknown(lookup):
    assert isinstance(await opened("silent", lookup=lookup).lookup(make_submission()), Unknown)


@pytest.mark.parametrize("function", ["nothing_here", "taken", "Provider.nothing"])
def test_gateway_needs_an_existing_function(function):
    with pytest.raises(GatewayMisconfigured, match=function):
        opened(function)


def test_module_that_cannot_be_imported_is_named():
    contract = Contract(
        target="sms",
        scope="item",
        guarantee="keyed",
        gateway=PythonTerms(function="no_such_module.at_all:send"),
    )
    with pytest.raises(GatewayMisconfigured, match="no_such_module"):
        open_gateway(contract, environment={})


def test_module_that_fails_when_its_function_is_looked_up_is_refused(tmp_path, monkeypatch):
    """Its target is not served. Any other error would stop the reading of all contracts."""
    text = "def __getattr__(name):\n    raise ImportError('no driver for hunter2hunter2')\n"
    (tmp_path / "lazy_gateways.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    gateway = PythonTerms(function="lazy_gateways:send")
    contract = Contract(target="sms", scope="item", guarantee="keyed", gateway=gateway)
    with pytest.raises(
        GatewayMisconfigured, match=r"of sms cannot be opened: .*no driver"
    ) as raised:
        open_gateway(contract, environment={}, secrets=["hunter2hunter2"])
    assert "hunter2" not in str(raised.value)


def test_second_function_of_the_same_name_is_refused():
    gateway_function("twice")(gateway_functions.silent)
    gateway_function("twice")(gateway_functions.silent)
    with pytest.raises(GatewayMisconfigured, match="twice"):
        gateway_function("twice")(gateway_functions.rejecting)


async def test_plain_function_runs_in_a_thread_and_does_not_block_the_loop():
    outcome = await opened("blocking").submit(make_submission())
    assert outcome.reference != threading.current_thread().name
    assert outcome.reference.startswith("leasehold-call")


async def test_plain_function_sees_the_context_of_its_call():
    gateway_functions.trace.set("of this call")
    outcome = await opened("traced").submit(make_submission())
    assert outcome == Accepted(reference="of this call")


@pytest.mark.parametrize(
    ("function", "kind", "reason"),
    [("failing_plainly", Unknown, "exception"), ("not_sent_plainly", Retryable, "busy")],
)
async def test_error_of_a_plain_function_means_what_it_means_elsewhere(function, kind, reason):
    outcome = await opened(function).submit(make_submission())
    assert (type(outcome), outcome.reason) == (kind, reason)


async def test_plain_lookup_function_answers_lookups():
    answer = await opened("silent", lookup="found_plainly").lookup(make_submission())
    assert answer == Accepted(reference="plain")


async def test_async_function_behind_a_plain_decorator_is_awaited():
    outcome = await opened("hidden").submit(make_submission())
    assert outcome == Accepted(reference="hidden")


@pytest.mark.parametrize("ended_by", ["timeout", "cancellation"])
async def test_thread_that_outlives_its_call_keeps_its_slot(ended_by):
    kept, errors = [], []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    gateway_functions.may_end.clear()
    timeout = 0.1 if ended_by == "timeout" else 20.0
    gateway = opened("hanging", call_timeout_seconds=timeout, threads=Threads(kept.append))
    call = asyncio.create_task(gateway.submit(make_submission()))
    if ended_by == "timeout":
        outcome = await call
        assert (type(outcome), outcome.reason) == (Unknown, "timeout")
    else:
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    [thread] = kept
    assert not thread.done()
    gateway_functions.may_end.set()
    await asyncio.wait([thread])
    del thread, kept
    gc.collect()
    assert errors == []


def test_contract_without_a_gateway_cannot_be_opened():
    with pytest.raises(GatewayMisconfigured, match="names no gateway"):
        open_gateway(Contract(target="sms", scope="item", guarantee="keyed"), environment={})
