"""Python gateways that put secrets and content of the intent into everything that they return."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

from pydantic import BaseModel

from leasehold.domain.outcome import Accepted, NotFound, Rejected, Retryable, Submitted, Unknown
from leasehold.gateway.errors import NotSent

if TYPE_CHECKING:
    from leasehold.domain.outcome import Outcome
    from leasehold.gateway.protocol import Submission

sleep = asyncio.sleep  # a test may let the time pass instead


def secret() -> str:
    """Return what a function of a user would read: the token of its provider."""
    return os.environ["PROVIDER_TOKEN"]


class Letter(BaseModel):
    """What a function may validate the payload with. The error quotes what it was given."""

    text: int


async def fail(_submission: Submission) -> None:
    """Raise an error that quotes the token and the URL of a database."""
    token = secret()
    raise RuntimeError(f"401 for Authorization: {token} of {os.environ['SHOP_DATABASE_URL']}")


async def fail_chained(submission: Submission) -> None:
    """Raise an error whose cause and note quote the token."""
    try:
        await fail(submission)
    except RuntimeError as error:
        error.add_note(f"sent {secret()}")
        raise ConnectionError("the provider is gone") from error


async def fail_in_group(_submission: Submission) -> None:
    """Raise a group of errors."""
    raise ExceptionGroup(secret(), [ValueError(secret()), KeyError(secret())])


async def quote_content(submission: Submission) -> None:
    """Raise an error of pydantic that quotes the payload, or one that quotes the body."""
    if submission.payload is None:
        raise ValueError(f"cannot send {submission.body!r}")
    Letter.model_validate(submission.payload.value())


async def not_sent(_submission: Submission) -> None:
    """Give the token as the reason."""
    raise NotSent(secret())


async def not_sent_at_length(_submission: Submission) -> None:
    """Give a reason in whose middle the token is cut off."""
    raise NotSent("x" * 60 + secret())


class Unprintable(Exception):
    """An error whose message cannot be had."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError(secret())


async def unprintable(_submission: Submission) -> None:
    """Raise an error whose message cannot be had."""
    raise Unprintable


async def endless(_submission: Submission) -> None:
    """Raise an error with a very long message."""
    raise RuntimeError(f"{secret()} " * 100_000)


async def time_out(_submission: Submission) -> None:
    """Hold the token while the time of the call runs out."""
    token = secret()
    await sleep(60)
    del token


async def answer_nonsense(_submission: Submission) -> object:
    """Return something that is no outcome."""
    return {"token": secret()}


def _outcomes(text: str) -> dict[str, Outcome]:
    every = {"code": text, "detail": text}
    return {
        "accepted": Accepted(reference=text, **every),
        "rejected": Rejected(reason=text, reference=text, **every),
        "retryable": Retryable(retry_after_seconds=3600, reason=text, **every),
        "unknown": Unknown(reason=text, reference=text, **every),
        "submitted": Submitted(reference=text, ask_after_seconds=3600, **every),
    }


async def accepted(_submission: Submission) -> Outcome:
    """Return the token in every field; so do the next ones."""
    return _outcomes(secret())["accepted"]


async def rejected(_submission: Submission) -> Outcome:
    """Return the token in every field."""
    return _outcomes(f"provider said: {secret()}")["rejected"]


async def retryable(_submission: Submission) -> Outcome:
    """Return the token in every field."""
    return _outcomes(secret())["retryable"]


async def unknown(_submission: Submission) -> Outcome:
    """Return the token in every field."""
    return _outcomes(secret())["unknown"]


async def submitted(_submission: Submission) -> Outcome:
    """Return the token in every field."""
    return _outcomes(secret())["submitted"]


async def not_found(_submission: Submission) -> NotFound:
    """Answer a lookup."""
    return NotFound(detail=secret())


async def forget_coroutine(submission: Submission) -> None:
    """Make a coroutine and never await it: Python warns."""
    fail(submission)  # pyright: ignore[reportUnusedCoroutine]  (that is the point)


async def fail_in_background(submission: Submission) -> None:
    """Leave a task behind that fails, and whose error nobody asks for."""
    task = asyncio.create_task(fail(submission))
    await asyncio.sleep(0.01)
    del task


async def fail_in_thread(_submission: Submission) -> None:
    """Leave a thread behind that fails."""
    thread = threading.Thread(target=asyncio.run, args=[fail(_submission)])
    thread.start()
    await asyncio.to_thread(thread.join)


class Grudge:
    """Fails when it is freed."""

    def __del__(self) -> None:
        """Raise what nobody can catch."""
        raise RuntimeError(secret())


async def fail_when_freed(_submission: Submission) -> None:
    """Leave an object behind that fails when it is freed."""
    Grudge()


async def leave(_submission: Submission) -> None:
    """End the process with a message."""
    raise SystemExit(f"401 for {secret()}")


def fail_plainly(_submission: Submission) -> None:
    """Fail in the thread of a plain function."""
    raise RuntimeError(secret())
