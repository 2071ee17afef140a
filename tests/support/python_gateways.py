"""Gateways of tests, as users write them; they misbehave once per folder in TEST_FOLDER."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.gateway.protocol import Submission


def is_first(what: str) -> bool:
    """Whether no process came by here before."""
    try:
        (Path(os.environ["TEST_FOLDER"]) / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def block(_submission: Submission) -> None:
    """Stop the whole event loop for five seconds, far longer than a lease, and until somebody puts
    `unblock` into the folder: a busy machine may need longer for the rest of the test.
    """
    if is_first("block"):
        time.sleep(5)  # noqa: ASYNC251 (that is the point)
        while not (Path(os.environ["TEST_FOLDER"]) / "unblock").exists():
            time.sleep(0.02)  # noqa: ASYNC251 (as above)


async def cling(_submission: Submission) -> None:
    """Ignore every request to end."""
    if is_first("cling"):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
