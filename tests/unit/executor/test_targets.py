"""The targets of an instance: what is opened, and for how long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from leasehold.domain.contract import Contract
from leasehold.domain.lease import trust_clock
from leasehold.domain.timing import Timings
from leasehold.executor.targets import Targets
from leasehold.gateway.python.terms import PythonTerms


def version(number, scope="item"):
    return Contract(
        target="sms",
        version=number,
        scope=scope,
        guarantee="keyed",
        gateway=PythonTerms(function="a:b"),
    )


class Contracts:
    """Contracts of a target that moved from items to streams. Reading an old version waits, as for
    a database, until it is told to answer.
    """

    def __init__(self):
        self.may_answer = asyncio.Event()

    async def read_contracts(self, refused):
        del refused
        return [version(2, "stream")]

    async def read_former_terms(self):
        return [SimpleNamespace(target="sms", version=1)]

    async def read_contract(self, target, number):
        assert target == "sms"
        await self.may_answer.wait()
        return version(number)


class Gateway:
    is_closed = False

    async def close(self):
        self.is_closed = True


async def test_old_version_that_two_batches_open_at_once_has_one_gateway_which_is_closed():
    contracts, opened = Contracts(), []

    def open_gateway(contract):
        del contract
        opened.append(Gateway())
        return opened[-1]

    targets = Targets(contracts, open_gateway, Timings, trust_clock)
    async with asyncio.TaskGroup() as group:
        first, second = (group.create_task(targets.of("sms", 1)) for _ in range(2))
        await asyncio.sleep(0)
        contracts.may_answer.set()
    assert first.result() is second.result()
    await targets.close()
    assert [one.is_closed for one in opened] == [True]


async def test_shorter_lease_of_the_settings_counts_in_the_former_scope_of_a_target_too():
    contracts, timings = Contracts(), Timings()
    contracts.may_answer.set()
    targets = Targets(contracts, lambda _: Gateway(), lambda: timings, trust_clock)
    await targets.start()
    assert targets.current("item")["sms"].lease_seconds == 30
    timings = replace(timings, lease_seconds=28)
    await targets.step()  # what `start` has read
    await targets.step()
    served = targets.current("item")["sms"], targets.current("stream")["sms"]
    assert [one.lease_seconds for one in served] == [28, 28]
