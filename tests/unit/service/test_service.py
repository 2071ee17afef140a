"""The one loop: it goes on after failures, wakes early, and stops."""

from __future__ import annotations

import asyncio

from leasehold.domain.errors import DatabaseUnavailable
from leasehold.service import service as service_module
from leasehold.service.service import AGAIN, Loop, Pause


class Counting:
    name = "counting"

    def __init__(self, *answers: Pause | Exception) -> None:
        self.wake = asyncio.Event()
        self.steps = 0
        self.done = asyncio.Event()
        self._answers = list(answers)

    async def step(self) -> Pause:
        self.steps += 1
        if not self._answers:
            self.done.set()
            return Pause(3600)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_service_that_fails_is_retried(monkeypatch):
    monkeypatch.setattr(service_module, "BACKOFF_FIRST_SECONDS", 0.001)
    service = Counting(DatabaseUnavailable("gone"), ValueError("a defect"), AGAIN)
    loop = Loop(service, "worker")
    async with asyncio.timeout(10):
        await service.done.wait()
    assert service.steps == 4
    loop.stop()
    await loop.join(10)
    assert loop.is_done


async def test_wake_ends_a_pause():
    service = Counting(Pause(3600))
    loop = Loop(service, "worker")
    await asyncio.sleep(0)
    service.wake.set()
    async with asyncio.timeout(10):
        await service.done.wait()
    loop.stop()
    await loop.join(10)
    assert loop.is_done


async def test_stop_ends_a_backoff_but_a_wake_does_not(monkeypatch):
    monkeypatch.setattr(service_module, "BACKOFF_FIRST_SECONDS", 3600)
    monkeypatch.setattr(service_module, "BACKOFF_SECONDS_MAX", 3600)
    service = Counting(DatabaseUnavailable("gone"))
    loop = Loop(service, "worker")
    for _ in range(3):
        await asyncio.sleep(0)
        service.wake.set()
    await asyncio.sleep(0.01)
    assert service.steps == 1
    loop.stop()
    await loop.join(10)
    assert loop.is_done


async def test_paced_service_that_fails_is_not_retried_sooner(monkeypatch):
    monkeypatch.setattr(service_module, "BACKOFF_FIRST_SECONDS", 0.001)

    class Paced(Counting):
        retry_seconds = 3600.0

    hasty, paced = (kind(DatabaseUnavailable("gone")) for kind in (Counting, Paced))
    loops = [Loop(service, "worker") for service in (hasty, paced)]
    async with asyncio.timeout(10):
        await hasty.done.wait()
    assert (hasty.steps, paced.steps) == (2, 1)
    for loop in loops:
        loop.stop()
        await loop.join(10)


async def test_step_that_does_not_end_is_cancelled():
    class Endless(Counting):
        async def step(self) -> Pause:
            await asyncio.Event().wait()
            return AGAIN

    loop = Loop(Endless(), "worker")
    await asyncio.sleep(0)
    loop.stop()
    await loop.join(0)
    assert loop.is_done


async def test_loop_stops_though_the_service_cleared_its_wake():
    may_end = asyncio.Event()

    class Writing(Counting):
        async def step(self) -> Pause:
            await may_end.wait()
            return Pause(3600)

    service = Writing()
    loop = Loop(service, "worker")
    await asyncio.sleep(0)
    loop.stop()
    service.wake.clear()
    may_end.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert loop.is_done
