"""Python gateways that misbehave once, and one that counts. Files in TEST_FOLDER remember across
processes what happened once.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.domain.outcome import Submitted
from leasehold.gateway.errors import NotSent
from tests.support import suspended_machine

if TYPE_CHECKING:
    from leasehold.gateway.protocol import Submission


def is_first(what: str) -> bool:
    """Return True for the first caller among all processes."""
    try:
        (Path(os.environ["TEST_FOLDER"]) / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def block(_submission: Submission) -> None:
    """Block the event loop until the test creates `unblock` in the folder; that is an hour."""
    if is_first("block"):
        while not (Path(os.environ["TEST_FOLDER"]) / "unblock").exists():
            time.sleep(0.02)  # noqa: ASYNC251 (that is the point)
        suspended_machine.suspend(3600)


async def suspend(_submission: Submission) -> None:
    """Let the machine be suspended for an hour."""
    if is_first("suspend"):
        suspended_machine.suspend(3600)


async def submit_only(_submission: Submission) -> Submitted:
    """Accept an intent that is to be confirmed later."""
    return Submitted(reference="r", ask_after_seconds=0.1)


async def fail(_submission: Submission) -> None:
    """Raise an error."""
    raise ConnectionError


async def poison(submission: Submission) -> None:
    """Fail each call whose payload is `poison`."""
    if submission.payload and submission.payload.value() == "poison":
        raise NotSent("poison")


async def stall(_submission: Submission) -> None:
    """Block the event loop for two seconds."""
    time.sleep(2)  # noqa: ASYNC251 (that is the point)


def occupy(_submission: Submission) -> None:
    """Block a thread until the test creates `unblock` in the folder."""
    if is_first("occupy"):
        while not (Path(os.environ["TEST_FOLDER"]) / "unblock").exists():
            time.sleep(0.02)


class CallsAtOnce:
    """How many calls of `count` run in this process, and how many ran at once at most."""

    running = 0
    most = 0


async def count(_submission: Submission) -> None:
    """Take a moment, and count how many others do so at the same time."""
    CallsAtOnce.running += 1
    CallsAtOnce.most = max(CallsAtOnce.most, CallsAtOnce.running)
    await asyncio.sleep(0.03)
    CallsAtOnce.running -= 1


async def cling(_submission: Submission) -> None:
    """Ignore every cancellation."""
    if is_first("cling"):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


async def hang(_submission: Submission) -> None:
    """Do not return before the call is cancelled."""
    if is_first("hang"):
        await asyncio.Event().wait()


async def leave(_submission: Submission) -> None:
    """End the process, as a command-line library may do."""
    if is_first("leave"):
        sys.exit(3)
