"""A program that enqueues from several processes at once with what it opened before it forked them.

Each process has a target of its own. It writes the key and the id of each acknowledged intent.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from leasehold import AsyncClient, Client
from leasehold.intake.intake import Intake

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

SECONDS = 60
CHILDREN = 4
INTENTS = 50  # of each target
TARGETS = ("before", "parent", "after", *(f"child{number}" for number in range(CHILDREN)))


def target_of(key: str) -> str:
    return key.partition("-")[0]


def run_program(kind: str, url: str, token: str = "") -> dict[str, str]:
    """Run this program to its end, and return the id of each key that was acknowledged."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, kind, url, token],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return dict(line.split() for line in done.stdout.splitlines())


@asynccontextmanager
async def async_client(url: str, token: str) -> AsyncGenerator[Any]:
    async with AsyncClient(url, token) as client:

        async def enqueue(key: str) -> Any:
            receipt = await client.enqueue(target_of(key), {"key": key}, idempotency_key=key)
            return receipt.intent_id

        yield enqueue


@asynccontextmanager
async def sync_client(url: str, token: str) -> AsyncGenerator[Any]:
    with Client(url, token) as client:

        async def enqueue(key: str) -> Any:
            return client.enqueue(target_of(key), {"key": key}, idempotency_key=key).intent_id

        yield enqueue


@asynccontextmanager
async def intake(url: str, _token: str) -> AsyncGenerator[Any]:
    async with Intake.connected(url) as opened:

        async def enqueue(key: str) -> Any:
            return await opened.enqueue(target_of(key), {"key": key}, idempotency_key=key)

        yield enqueue


KINDS: dict[str, Callable[[str, str], AbstractAsyncContextManager[Any]]] = {
    "async": async_client,
    "sync": sync_client,
    "intake": intake,
}


async def use(enqueue: Any, name: str) -> None:
    """Enqueue intents, some of them at once."""

    async def one(key: str) -> None:
        os.write(1, f"{key} {await enqueue(key)}\n".encode())

    for number in range(0, INTENTS, 2):
        await asyncio.gather(one(f"{name}-{number}"), one(f"{name}-{number + 1}"))


def fork(enqueue: Any, name: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        asyncio.run(use(enqueue, name))
    except BaseException as error:  # noqa: BLE001 (a child never returns)
        os.write(2, f"{name}: {error!r}\n".encode())
        os._exit(1)
    os._exit(0)


async def main(kind: str, url: str, token: str) -> int:
    async with KINDS[kind](url, token) as enqueue:
        await use(enqueue, "before")
        children = [fork(enqueue, f"child{number}") for number in range(CHILDREN)]
        await use(enqueue, "parent")
        ended = [await asyncio.to_thread(os.waitpid, child, 0) for child in children]
        await use(enqueue, "after")
    return max(os.waitstatus_to_exitcode(status) for _, status in ended)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
