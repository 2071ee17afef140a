"""A bad intent is refused with the same words by the library, the client, the API and the database.

What the database decides alone (its clock, its contracts, sizes) is tested with the database.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime

import pytest

from leasehold import Intake
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import NewIntent
from leasehold.intake.validation import find_problem
from tests.support.api import problem

NAME = "must be 1 to 255 characters without control characters"
ONE_CONTENT = "payload must be given (any JSON but null) if body is not, and only then"
WITH_BODY = "content_type must be given with body, and only with body"
DELAY = "delay_seconds must be from 0 to 315360000 (ten years)"
DEADLINE = "deadline_seconds must be above 0 and at most 315360000 (ten years)"
LATE = "must be after now and after the intent is due"
ERA = "must be after 1970 and before 9999-12-31"
DUE = "due_at must be after 1970 and within ten years"
SOON = datetime(2030, 1, 1, tzinfo=UTC)
BAD = [
    ({"target": ""}, "target must be 1 to 64 characters without control characters"),
    ({"target": "s" * 65}, "target must be 1 to 64 characters without control characters"),
    ({"target": "s\ns"}, "target must be 1 to 64 characters without control characters"),
    ({"payload": None}, ONE_CONTENT),
    ({"body": b"b", "content_type": "a/b"}, ONE_CONTENT),
    ({"content_type": "a/b"}, WITH_BODY),
    ({"payload": None, "body": b"b"}, WITH_BODY),
    ({"payload": None, "body": b"b", "content_type": ""}, f"content_type {NAME}"),
    ({"payload": None, "body": b"b", "content_type": "a\nb"}, f"content_type {NAME}"),
    ({"idempotency_key": ""}, f"idempotency_key {NAME}"),
    ({"idempotency_key": "k" * 256}, f"idempotency_key {NAME}"),
    ({"idempotency_key": "k\x7f"}, f"idempotency_key {NAME}"),
    ({"key_scope": "galaxy"}, "key_scope must be target or all"),
    ({"stream": ""}, f"stream {NAME}"),
    ({"stream": "s" * 256}, f"stream {NAME}"),
    ({"stream": "s\ts"}, f"stream {NAME}"),
    ({"priority": -1}, "priority must be from 0 (first) to 3 (last)"),
    ({"priority": 4}, "priority must be from 0 (first) to 3 (last)"),
    ({"due_at": SOON, "delay_seconds": 1}, "delay_seconds must not be given with due_at"),
    ({"delay_seconds": -1}, DELAY),
    ({"delay_seconds": 315_360_001}, DELAY),
    ({"due_at": datetime(1969, 12, 31, tzinfo=UTC)}, DUE),
    ({"due_at": datetime(9999, 12, 31, 12, tzinfo=UTC)}, DUE),
    (
        {"deadline_at": SOON, "deadline_seconds": 1},
        "deadline_seconds must not be given with deadline_at",
    ),
    ({"deadline_seconds": 0}, DEADLINE),
    ({"deadline_seconds": -1}, DEADLINE),
    ({"deadline_seconds": 1e300}, DEADLINE),
    ({"deadline_seconds": 10, "delay_seconds": 20}, f"deadline_seconds {LATE}"),
    ({"deadline_at": SOON, "due_at": SOON}, f"deadline_at {LATE}"),
    ({"deadline_at": datetime(1969, 12, 31, tzinfo=UTC)}, f"deadline_at {ERA}"),
    (
        {"deadline_at": datetime(9999, 12, 31, 12, tzinfo=UTC)},
        f"deadline_at {ERA}",
    ),
    ({"metadata": [1]}, "metadata must be an object"),
]


def wire(given):
    """The fields as JSON has them."""
    return {
        name: value.isoformat()
        if isinstance(value, datetime)
        else b64encode(value).decode()
        if isinstance(value, bytes)
        else value
        for name, value in given.items()
    }


@pytest.mark.parametrize(
    ("fields", "words"), BAD, ids=[f"{list(one)[-1]}-{n}" for n, (one, _) in enumerate(BAD)]
)
async def test_bad_intent_is_refused_everywhere_in_the_same_words(
    client, api, outbox, database, fields, words
):
    given = {"target": "sms", "payload": 1} | fields
    new = NewIntent(**given)
    assert find_problem(new) == words
    async with Intake.connected(database.url) as intake:
        with pytest.raises(InvalidArgument) as by_library:
            await intake.enqueue(new)
    assert str(by_library.value) == f"the intent is invalid: {words}"
    with pytest.raises(InvalidArgument) as by_client:
        await client.enqueue(new)
    assert str(by_client.value) == words
    refusal = problem(await api.post("/v1/intents", wire(given)), 422, "invalid")
    assert [" ".join(one.values()) for one in refusal["problems"]] == [words]
    [row] = outbox.enqueue_entries([wire(given)])
    assert (row["verdict"], row["problem"]) == ("invalid", words)
    assert api.intents() == 0
