"""Cases of what readers see: statuses, listings, events, counts, instances and leases."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from leasehold.conformance.scene import (
    LEASE_SECONDS,
    OPERATOR,
    Scene,
    cases,
    require,
    require_equal,
    require_refused,
    until,
)
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import IntentId, Status
from leasehold.domain.outcome import Accepted, Rejected
from leasehold.store.reader_rows import EventCursor

if TYPE_CHECKING:
    from leasehold.store.reader_rows import LedgerEvent

_WRITERS = 6


async def unknown_intent_has_no_status_and_no_ledger(scene: Scene) -> None:
    """It is left out, not an error."""
    unknown = IntentId(uuid4())
    require_equal("the ledger", await scene.one.read_ledger([unknown]), [])
    require_equal("the status", await scene.one.read_status([unknown]), [])
    require_equal("the content", await scene.one.read_content(unknown), None)


async def status_has_what_was_accepted(scene: Scene) -> None:
    """What a sender gave, it can read."""
    await scene.publish()
    intent_id = await scene.one.enqueue_intent(
        scene.new(idempotency_key="k", priority=3, delay_seconds=3600.0, deadline_seconds=7200.0)
    )
    seen = await scene.status(intent_id)
    require_equal(
        "the status",
        (seen.target, seen.idempotency_key, seen.priority, seen.status, seen.attempts),
        (scene.target, "k", 3, Status.PENDING, 0),
    )
    hour = timedelta(hours=1)
    due_in = None if seen.due_at is None else seen.due_at - seen.created_at
    left = None if seen.deadline_at is None else seen.deadline_at - seen.created_at
    require_equal("due and deadline", (due_in, left), (hour, 2 * hour))


async def listing_is_newest_first_and_continues_by_its_last_row(scene: Scene) -> None:
    """Rows that are added meanwhile shift nothing."""
    await scene.publish()
    told = await scene.one.enqueue_intents([scene.new(number) for number in range(9)])
    await scene.enqueue(1)
    seen: list[IntentId] = []
    before: IntentId | None = None
    for _ in range(20):
        page = await scene.other.list_intents(target=scene.target, before=before, limit=4)
        seen += [one.intent_id for one in page.intents]
        before = page.intents[-1].intent_id if page.intents else page.searched_to
        if before is None:
            break
        await scene.enqueue(1)
    require_equal("each once", len(set(seen)), len(seen))
    require_equal("the order", seen, sorted(seen, reverse=True))
    require(set(seen) >= {one.intent_id for one in told}, "a listing lost an intent")


async def listing_finds_by_status_target_and_time(scene: Scene) -> None:
    """And by nothing that the caller may not see."""
    await scene.publish()
    worker = await scene.worker()
    [accepted] = await scene.enqueue()
    await scene.attempt(worker, Accepted())
    [waiting] = await scene.enqueue()
    created_at = (await scene.status(waiting)).created_at

    async def found(
        *,
        status: Status | None = None,
        targets: list[str] | None = None,
        until_: datetime | None = None,
    ) -> set[IntentId]:
        page = await scene.other.list_intents(
            target=scene.target, status=status, targets=targets, until=until_
        )
        return {one.intent_id for one in page.intents}

    require_equal("accepted", await found(status=Status.ACCEPTED), {accepted})
    require_equal("pending", await found(status=Status.PENDING), {waiting})
    require_equal("without a right", await found(targets=[f"{scene.target}-not"]), set[IntentId]())
    hour = timedelta(hours=1)
    require_equal("until then", await found(until_=created_at - hour), set[IntentId]())


async def events_come_once_in_an_order_that_does_not_change(scene: Scene) -> None:
    """No row appears behind a cursor, whoever writes at the same time."""
    await scene.publish()
    worker = await scene.worker()
    cursor = await scene.one.newest_event()
    ids = await scene.enqueue(12)
    work = {one.intent_id: one for one in await worker.take()}

    async def finish(part: list[IntentId]) -> None:
        for intent_id in part:
            await worker.begin(work[intent_id])
            await worker.record(work[intent_id], Accepted())

    writing = asyncio.gather(*(finish(ids[number::3]) for number in range(3)))
    seen: list[LedgerEvent] = []

    async def all_seen() -> bool | None:
        nonlocal cursor
        page = await scene.other.read_events(cursor, 5)
        seen.extend(page)
        cursor = page[-1].cursor if page else cursor
        found = {one.attempt.intent_id for one in seen}
        return True if found.issuperset(ids) else None

    await until("events of finished intents were never read", all_seen)
    await writing
    ours = [one.attempt.intent_id for one in seen if one.target == scene.target]
    require_equal("each once", sorted(ours), sorted(ids))
    cursors: list[EventCursor] = [one.cursor for one in seen]
    require_equal("the order", cursors, sorted(cursors))
    again = await scene.one.read_events(cursors[0], len(seen))
    require_equal("read again", [one.cursor for one in again][: len(seen) - 1], cursors[1:])


async def event_cursor_that_the_store_did_not_make_is_refused(scene: Scene) -> None:
    """A cursor is opaque; a wrong one would skip rows in silence."""
    for text in ("nonsense", ""):
        await require_refused(
            f"the cursor {text!r}",
            InvalidArgument,
            scene.one.read_events(EventCursor(text), 1),
        )


async def queue_depth_is_counted_up_to_its_limit(scene: Scene) -> None:
    """Intake asks it before it accepts."""
    await scene.publish(pending_max=5)
    await scene.enqueue(3)

    async def counted() -> int | None:
        turn_no = await scene.other.begin_watch_turn("depths")
        if turn_no is not None:
            await scene.other.record_queue_depths(turn_no)
        for one in await scene.one.read_queue_depths():
            if one.target == scene.target and one.seen_at is not None and one.depth == 3:
                return one.pending_max
        return None

    limit = await until("a queue with a limit was never counted", counted)
    require_equal("its limit", limit, 5)


async def one_instance_at_a_time_counts_the_queue(scene: Scene) -> None:
    """However many ask at once."""
    turns = await asyncio.gather(
        *(
            (scene.one if number % 2 else scene.other).begin_watch_turn("counts")
            for number in range(_WRITERS)
        )
    )
    given = [one for one in turns if one is not None]
    require(len(given) <= 1, f"turns {given} at once")


async def instance_is_seen_until_it_says_that_it_stops(scene: Scene) -> None:
    """And as silent if it dies."""
    await scene.one.renew_instance(scene.target, "worker", [], {"version": "1"}, LEASE_SECONDS)
    found = [
        one
        for one in await scene.other.read_instances(None, 1000)
        if one.instance_id == scene.target
    ]
    require_equal("alive", [(one.role, one.is_alive) for one in found], [("worker", True)])
    require_equal("its report", [one.detail.value() for one in found], [{"version": "1"}])
    require(await scene.one.release_instance(scene.target), "an instance could not stop")
    found = [
        one
        for one in await scene.other.read_instances(None, 1000)
        if one.instance_id == scene.target
    ]
    require_equal("stopped", [(one.role, one.is_alive) for one in found], [("stopped", False)])
    require(not await scene.one.release_instance(f"{scene.target}-not"), "an unknown one stopped")


async def instance_that_falls_silent_is_named(scene: Scene) -> None:
    """And named as returned when it reports again."""
    name = scene.target
    await scene.one.renew_instance(name, "worker", [], {}, 1.0)

    async def silent() -> bool | None:
        return True if name in await scene.other.read_silent_instances(3600.0) else None

    await until("an instance that is silent was not named", silent)
    await scene.one.renew_instance(name, "worker", [], {}, LEASE_SECONDS)
    require_equal("returned", await scene.other.read_returned_instances({name: 3600.0}), [name])


async def leases_are_listed_by_name_with_their_holders(scene: Scene) -> None:
    """In pages, each after the last name of the one before."""
    lease = await scene.acquire(scene.one, "one")
    await scene.one.acquire_lease(f"{scene.lease_name}-b", "two", LEASE_SECONDS)
    [first] = await scene.other.read_leases(scene.lease_name, None, 1)
    found = (first.lease_name, first.holder_id, first.lease_epoch, first.is_live)
    require_equal("the first", found, (lease.name, "one", lease.epoch, True))
    rest = await scene.other.read_leases(scene.lease_name, first.lease_name, 10)
    require_equal("the rest", [one.holder_id for one in rest], ["two"])


async def contracts_are_read_as_they_were_published(scene: Scene) -> None:
    """By executors as terms that they understand, by people word for word."""
    await scene.publish(attempts_max=7)
    [contract] = [one for one in await scene.one.read_contracts() if one.target == scene.target]
    require_equal("the terms", (contract.version, contract.retry.attempts_max), (1, 7))
    found = await scene.other.read_published_contract(scene.target)
    require_equal("by whom", found.published_by if found else None, OPERATOR)
    require_equal("an unknown version", await scene.one.read_contract(scene.target, 9), None)


async def terms_of_a_former_lease_are_read_while_intents_have_them(scene: Scene) -> None:
    """Somebody must finish them where they were accepted."""
    await scene.publish()
    worker = await scene.worker()
    await scene.enqueue()
    await scene.publish(lease_name=f"{scene.lease_name}-b")

    async def former() -> list[tuple[int, str | None]]:
        found = await scene.other.read_former_terms()
        return [(one.version, one.lease_name) for one in found if one.target == scene.target]

    require_equal("with a pending intent", await former(), [(1, scene.lease_name)])
    await scene.attempt(worker, Rejected(reason="no"))
    require_equal("without one", await former(), [])


CASES = cases(
    ("item", "cluster", "stream"),
    status_has_what_was_accepted,
    listing_finds_by_status_target_and_time,
    events_come_once_in_an_order_that_does_not_change,
) + cases(
    ("cluster",),
    unknown_intent_has_no_status_and_no_ledger,
    listing_is_newest_first_and_continues_by_its_last_row,
    event_cursor_that_the_store_did_not_make_is_refused,
    queue_depth_is_counted_up_to_its_limit,
    one_instance_at_a_time_counts_the_queue,
    instance_is_seen_until_it_says_that_it_stops,
    instance_that_falls_silent_is_named,
    leases_are_listed_by_name_with_their_holders,
    contracts_are_read_as_they_were_published,
    terms_of_a_former_lease_are_read_while_intents_have_them,
)
