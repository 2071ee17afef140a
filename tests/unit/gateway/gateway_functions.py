"""Gateway functions that the tests name by import path, as users do."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextvars import ContextVar

from leasehold.domain.outcome import Accepted, Deferred, NotFound, Rejected
from leasehold.gateway.errors import NotSent
from leasehold.gateway.python import gateway_function

taken: list[object] = []
trace: ContextVar[str] = ContextVar("trace")


async def silent(submission):
    taken.append(submission)


async def rejecting(_submission):
    return Rejected(reason="closed")


async def failing(_submission):
    raise RuntimeError("half way through")


async def own_timeout(_submission):
    raise TimeoutError("of its own")


async def not_sent(_submission):
    raise NotSent("busy", retry_after_seconds=3, is_saturated=True)


async def deferring(_submission):
    return Deferred(reason="balance_too_low", retry_after_seconds=600)


async def deferring_without_a_reason(_submission):
    return Deferred(reason="\x00")


async def careful(submission):
    if not submission.may_send():
        raise NotSent("trust_ended")


async def slow(_submission):
    await asyncio.sleep(60)


async def chatty(_submission):
    return {"status": "went fine, I think"}


def blocking(_submission):
    return Accepted(reference=threading.current_thread().name)


def failing_plainly(_submission):
    raise RuntimeError("half way through")


async def exiting(_submission):
    sys.exit("half way through")


def exiting_plainly(_submission):
    sys.exit("half way through")


async def interrupted(_submission):
    raise KeyboardInterrupt


def interrupted_plainly(_submission):
    raise KeyboardInterrupt


async def cancelling_itself(_submission):
    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel()
    await inner


def stopping_plainly(_submission):
    return next(iter(()))


def not_sent_plainly(_submission):
    raise NotSent("busy")


def found_plainly(_submission):
    return Accepted(reference="plain")


may_end = threading.Event()


def hanging(_submission):
    may_end.wait(60)
    raise RuntimeError("too late for anybody")


def traced(_submission):
    return Accepted(reference=trace.get())


def decorated(function):
    return lambda submission: function(submission)


@decorated
async def hidden(_submission):
    return Accepted(reference="hidden")


async def found(submission):
    return Accepted(reference=str(submission.submission_key))


async def missing(_submission):
    return NotFound()


@gateway_function("sms")
async def under_another_name(_submission):
    return Accepted(reference="by name")


class Provider:
    @staticmethod
    async def send(_submission):
        return Accepted(reference="nested")


class Callable:
    async def __call__(self, _submission):
        return Accepted(reference="object")


instance = Callable()
