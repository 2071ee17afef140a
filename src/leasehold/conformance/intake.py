"""Cases of intake: keys, verdicts, limits, and that the content is kept as it was."""

from __future__ import annotations

import asyncio

from leasehold.conformance.scene import (
    OPERATOR,
    Scene,
    cases,
    require,
    require_equal,
    require_refused,
)
from leasehold.domain.errors import (
    ContentTooLarge,
    IdempotencyConflict,
    InvalidArgument,
)
from leasehold.domain.intent import NewIntent
from leasehold.domain.outcome import Retryable
from leasehold.domain.verdict import EnqueueVerdict

_SENDERS = 8
_LIMIT_BYTES = 1_048_576


async def same_key_and_payload_is_the_same_intent(scene: Scene) -> None:
    """A sender that got no answer may send again."""
    await scene.publish()
    new = scene.new({"a": 1}, idempotency_key="k", stream="s")
    intent_id = await scene.one.enqueue_intent(new)
    require_equal("the second answer", await scene.other.enqueue_intent(new), intent_id)
    require_equal("intents", len(await _listed(scene)), 1)


async def key_of_another_payload_or_stream_is_a_conflict(scene: Scene) -> None:
    """Nothing is written, and the sender learns which intent has the key."""
    await scene.publish()
    first = scene.new({"a": 1}, idempotency_key="k", stream="s")
    intent_id = await scene.one.enqueue_intent(first)
    for other in (
        scene.new({"a": 2}, idempotency_key="k", stream="s"),
        scene.new({"a": 1}, idempotency_key="k", stream="t"),
    ):
        error = await require_refused(
            "a taken key", IdempotencyConflict, scene.other.enqueue_intent(other)
        )
        require_equal("the holder", getattr(error, "intent_id", None), intent_id)
    require_equal("intents", len(await _listed(scene)), 1)


async def payloads_are_compared_in_their_normal_form(scene: Scene) -> None:
    """Another order of keys is the same payload; another value is not."""
    await scene.publish()
    first = await scene.one.enqueue_intent(
        scene.new({"a": [1, None], "b": {"c": "ä", "d": 2}}, idempotency_key="k", stream="s")
    )
    again = await scene.one.enqueue_intent(
        scene.new({"b": {"d": 2, "c": "ä"}, "a": [1, None]}, idempotency_key="k", stream="s")
    )
    require_equal("the id", again, first)
    for payload in ({"a": [None, 1], "b": {"c": "ä", "d": 2}}, {"a": [1, None]}):
        await require_refused(
            "another payload",
            IdempotencyConflict,
            scene.one.enqueue_intent(scene.new(payload, idempotency_key="k", stream="s")),
        )


async def key_belongs_to_its_target(scene: Scene) -> None:
    """Two targets may get the same key."""
    second = scene.second()
    ids = set[object]()
    for one in (scene, second):
        await one.publish()
        ids.add(await one.one.enqueue_intent(one.new(idempotency_key="k", stream="s")))
    require_equal("intents", len(ids), 2)


async def key_of_all_targets_is_taken_in_all(scene: Scene) -> None:
    """A sender that does not choose the target is safe too."""
    second = scene.second()
    await scene.publish()
    await second.publish()
    key = f"{scene.target}-key"
    first = scene.new(idempotency_key=key, key_scope="all", stream="s")
    intent_id = await scene.one.enqueue_intent(first)
    require_equal("the same again", await scene.one.enqueue_intent(first), intent_id)
    await require_refused(
        "the key in another target",
        IdempotencyConflict,
        second.one.enqueue_intent(second.new(idempotency_key=key, key_scope="all", stream="s")),
    )


async def one_of_many_senders_of_a_key_is_accepted(scene: Scene) -> None:
    """All others are told which intent it became."""
    await scene.publish()
    new = scene.new(idempotency_key="k", stream="s")
    told = await asyncio.gather(
        *(
            (scene.one if number % 2 else scene.other).enqueue_intents([new])
            for number in range(_SENDERS)
        )
    )
    verdicts = sorted(str(one.verdict) for [one] in told)
    require_equal("verdicts", verdicts, ["accepted", *["duplicate"] * (_SENDERS - 1)])
    require_equal("intents", len({one.intent_id for [one] in told}), 1)


async def each_intent_of_a_batch_has_its_own_verdict(scene: Scene) -> None:
    """One bad intent refuses no other."""
    await scene.publish()
    told = await scene.one.enqueue_intents(
        [
            scene.new({"a": 1, "b": 2}, idempotency_key="k", stream="s"),
            scene.new({"b": 2, "a": 1}, idempotency_key="k", stream="s"),
            scene.new({"a": 2}, idempotency_key="k", stream="s"),
            NewIntent(target=f"{scene.target}-not", payload=1),
            scene.new("x" * _LIMIT_BYTES),
            scene.new(priority=9),
        ]
    )
    require_equal("the order", [one.ordinal for one in told], [1, 2, 3, 4, 5, 6])
    require_equal("verdicts", [one.verdict for one in told], list(EnqueueVerdict))
    ids = [one.intent_id for one in told]
    require(ids[0] == ids[1] == ids[2] is not None, f"the ids of one key: {ids[:3]}")
    require_equal("ids of refused intents", ids[3:], [None] * 3)
    require("priority" in (told[5].problem or ""), f"the problem is {told[5].problem}")
    require_equal("intents", len(await _listed(scene)), 1)


async def payload_may_have_a_mebibyte_and_no_more(scene: Scene) -> None:
    """What counts is the text of a payload, and the bytes of a body."""
    await scene.publish()
    for ours, theirs in (
        (scene.new("x" * (_LIMIT_BYTES - 2)), scene.new("x" * (_LIMIT_BYTES - 1))),
        (_body(scene, _LIMIT_BYTES), _body(scene, _LIMIT_BYTES + 1)),
    ):
        await scene.one.enqueue_intent(ours)
        error = await require_refused(
            "too much content", ContentTooLarge, scene.one.enqueue_intent(theirs)
        )
        require_equal("the limit", getattr(error, "limit_bytes", None), _LIMIT_BYTES)


async def content_is_handed_out_as_it_was_accepted(scene: Scene) -> None:
    """Text, numbers of any size, and opaque bytes."""
    await scene.publish()
    payload = {"text": "grüße \N{GRINNING FACE}", "list": [1, 2.5, None, True], "big": 10**30}
    with_payload = await scene.one.enqueue_intent(scene.new(payload))
    with_body = await scene.one.enqueue_intent(
        scene.new(body=bytes(range(256)), content_type="application/octet-stream")
    )
    one = await scene.other.read_content(with_payload)
    other = await scene.other.read_content(with_body)
    value = one.payload.value() if one and one.payload else None
    require_equal("the payload", value, payload)
    found = (other.body, other.content_type) if other else None
    require_equal("the body", found, (bytes(range(256)), "application/octet-stream"))


async def single_intent_that_cannot_be_accepted_is_an_error(scene: Scene) -> None:
    """A verdict of a batch is an exception of a single call."""
    await scene.publish()
    refused = {
        "an unknown target": NewIntent(target=f"{scene.target}-not", payload=1),
        "neither payload nor body": scene.new(None),
        "a bad priority": scene.new(priority=4),
        "a long key": scene.new(idempotency_key="k" * 256),
        "a deadline that is over": scene.new(deadline_seconds=-1.0),
    }
    for what, new in refused.items():
        await require_refused(what, InvalidArgument, scene.one.enqueue_intent(new))
    require_equal("intents", await _listed(scene), [])


async def taken_keys_are_known(scene: Scene) -> None:
    """A full queue may refuse new intents, and must not refuse repeated ones."""
    await scene.publish()
    await scene.one.enqueue_intent(scene.new(idempotency_key="taken", stream="s"))
    asked = [(scene.target, key, False) for key in ("taken", "free")]
    require_equal("known keys", await scene.other.read_known_keys(asked), set(asked[:1]))


async def intent_keeps_the_terms_that_it_was_accepted_under(scene: Scene) -> None:
    """New terms are for new intents."""
    first = await scene.publish(retry_policy="one_shot")
    [old] = await scene.enqueue()
    second = await scene.publish(attempts_max=3)
    [new] = await scene.enqueue()
    versions = [(await scene.status(one)).contract_version for one in (old, new)]
    require_equal("contract versions", versions, [first, second])
    worker = await scene.worker()
    for work in await worker.take():
        await worker.begin(work)
        await worker.record(work, Retryable(retry_after_seconds=0))
    statuses = [str((await scene.status(one)).status) for one in (old, new)]
    require_equal("after a try", statuses, ["exhausted", "pending"])


async def scope_that_is_not_served_is_refused(scene: Scene) -> None:
    """Its intents would wait for ever."""
    known: set[str] = {"item", "stream", "cluster", "galaxy"}
    for scope in sorted(known - scene.database.scopes):
        terms = {"scope": scope, "guarantee": "keyed", "gateway": None}
        await require_refused(
            f"a target of scope {scope}",
            InvalidArgument,
            scene.one.publish_contract(f"{scene.target}-{scope}", terms, OPERATOR),
        )


async def _listed(scene: Scene) -> list[object]:
    return list((await scene.other.list_intents(target=scene.target)).intents)


def _body(scene: Scene, size: int) -> NewIntent:
    return scene.new(body=b"x" * size, content_type="application/octet-stream")


CASES = cases(
    ("item", "cluster", "stream"),
    same_key_and_payload_is_the_same_intent,
    one_of_many_senders_of_a_key_is_accepted,
    each_intent_of_a_batch_has_its_own_verdict,
    intent_keeps_the_terms_that_it_was_accepted_under,
) + cases(
    ("cluster",),
    key_of_another_payload_or_stream_is_a_conflict,
    payloads_are_compared_in_their_normal_form,
    key_belongs_to_its_target,
    key_of_all_targets_is_taken_in_all,
    payload_may_have_a_mebibyte_and_no_more,
    content_is_handed_out_as_it_was_accepted,
    single_intent_that_cannot_be_accepted_is_an_error,
    taken_keys_are_known,
    scope_that_is_not_served_is_refused,
)
