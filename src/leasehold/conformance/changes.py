"""Cases of the leader's cursor and of its windows of due rows: no row is missed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasehold.conformance.scene import Scene, cases, require, require_equal, until
from leasehold.domain.outcome import Accepted, Result, Retryable, Unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.domain.intent import IntentId
    from leasehold.domain.lease import Lease
    from leasehold.domain.outcome import Outcome
    from leasehold.store.leader_protocol import Changes
    from leasehold.store.rows import DueRow, RowVersion

_WRITERS = 6
_BATCHES = 5
_BATCH = 20


async def change_after_the_begin_is_read(scene: Scene) -> None:
    """Whoever reads everything, begins, and then reads the changes misses nothing."""
    lease, changes = await _begun(scene)
    ids = await scene.enqueue(3)
    require(set(ids) <= {row.intent_id for row in await _read(changes)}, "a new row was missed")
    await _record(scene, lease, ids[0], Retryable(retry_after_seconds=60))
    require(ids[0] in {row.intent_id for row in await _read(changes)}, "a change was missed")


async def rows_of_concurrent_writers_are_all_read(scene: Scene) -> None:
    """However late each commits, and however many looks there are meanwhile."""
    _, changes = await _begun(scene)
    accepted: list[IntentId | None] = []

    async def write(number: int) -> None:
        store = scene.one if number % 2 else scene.other
        for _ in range(_BATCHES):
            told = await store.enqueue_intents([scene.new() for _ in range(_BATCH)])
            accepted.extend(one.intent_id for one in told)

    seen: set[IntentId] = set()
    writing = asyncio.gather(*(write(number) for number in range(_WRITERS)))
    while not writing.done():
        seen.update(row.intent_id for row in await _read(changes))
    await writing

    async def complete() -> bool | None:
        seen.update(row.intent_id for row in await _read(changes))
        return True if seen.issuperset(one for one in accepted if one is not None) else None

    await until("rows of concurrent writers were never read", complete)
    require_equal("rows", len(accepted), _WRITERS * _BATCHES * _BATCH)


async def later_version_of_a_row_is_greater(scene: Scene) -> None:
    """Versions are opaque, but of two of one row the later one is greater."""
    lease, changes = await _begun(scene)
    [intent_id] = await scene.enqueue()
    versions: list[RowVersion] = []
    for _ in range(3):
        versions += [row.version for row in await _read(changes) if row.intent_id == intent_id][-1:]
        await _record(scene, lease, intent_id, Retryable(retry_after_seconds=60))
    require(len(versions) == 3, f"three changes have the versions {versions}")
    require(versions[0] < versions[1] < versions[2], f"successive versions: {versions}")


async def change_is_certainly_read_only_after_it_was_read(scene: Scene) -> None:
    """A leader may drop a row only if no change of it is still to come."""
    lease, changes = await _begun(scene)
    [intent_id] = await scene.enqueue()
    rows = await _read(changes)
    [before] = [row for row in rows if row.intent_id == intent_id]
    await _record(scene, lease, intent_id, Retryable(retry_after_seconds=0))
    [after] = await scene.one.refresh_due_rows("one", [lease], [scene.target], 10)
    require(not changes.certainly_read()(after), "a change counts as read before it was")
    await _read(changes)
    require(changes.certainly_read()(before), "a change that was read does not count as read")


async def changes_of_another_lease_are_not_read(scene: Scene) -> None:
    """A leader is told what is its own."""
    await scene.publish()
    foreign = await scene.one.acquire_lease(f"{scene.lease_name}-b", "one", 600)
    changes = scene.one.changes(foreign.lease)
    await changes.begin()
    await scene.enqueue(2)
    require_equal("changes under another lease", await _read(changes), [])


async def full_reload_reads_every_due_row_in_order(scene: Scene) -> None:
    """A window ends at its limit, and the next begins where it ended."""
    await scene.publish()
    lease = await scene.acquire(scene.one, "one")
    for priority in (2, 0, 1, 1, 1, 2, 0):
        await scene.enqueue(priority=priority)
    whole = await scene.one.refresh_due_rows("one", [lease], [scene.target], 100)
    require_equal("rows", len(whole), 7)
    for priority in (0, 1, 2):
        rows = [row for row in whole if row.priority == priority]
        places = [(row.due_at, row.intent_id) for row in rows]
        require_equal(f"the order of priority {priority}", places, sorted(places))
        read = await _in_pages(scene, lease, priority)
        require_equal("rows read in pages", read, [row.intent_id for row in rows])


async def window_is_bounded_per_target_and_priority(scene: Scene) -> None:
    """A flood of one priority hides no other."""
    await scene.publish()
    lease = await scene.acquire(scene.one, "one")
    await scene.enqueue(5, priority=0)
    [urgent] = await scene.enqueue(1, priority=3)
    window = await scene.one.refresh_due_rows("one", [lease], [scene.target], 2)
    require_equal("rows", len(window), 3)
    require(urgent in {row.intent_id for row in window}, "a flood hides another priority")


async def held_row_is_a_change_and_never_due(scene: Scene) -> None:
    """A leader learns that it must wait for a person."""
    lease, changes = await _begun(scene, guarantee="blind")
    [intent_id] = await scene.enqueue()
    await scene.one.begin_leased_attempts(lease, [intent_id])
    await _record(scene, lease, intent_id, Unknown(retry_after_seconds=0))
    [row] = [row for row in await _read(changes) if row.intent_id == intent_id][-1:]
    require_equal("its due time", row.due_at, None)
    due = await scene.one.refresh_due_rows("one", [lease], [scene.target], 10)
    require_equal("due rows", due, [])


async def finished_row_is_not_due(scene: Scene) -> None:
    """What has ended is handed out to nobody."""
    await scene.publish()
    lease = await scene.acquire(scene.one, "one")
    finished, left = await scene.enqueue(2)
    await _record(scene, lease, finished, Accepted())
    due = await scene.one.refresh_due_rows("one", [lease], [scene.target], 10)
    require_equal("due rows", [row.intent_id for row in due], [left])


async def content_comes_with_a_row_or_with_its_mark(scene: Scene) -> None:
    """A call has its content, whether the window had room for it or not."""
    await scene.publish()
    lease = await scene.acquire(scene.one, "one")
    await scene.one.enqueue_intent(scene.new({"number": 1}))
    [bare] = await scene.one.refresh_due_rows("one", [lease], [scene.target], 10)
    [whole] = await scene.one.refresh_due_rows("one", [lease], [scene.target], 10, 1000)
    require(whole.has_content and not bare.has_content, "content came unasked, or not at all")
    for number, row in enumerate((bare, whole), start=1):
        [call] = (await scene.one.mark_calls(lease, [row], number)).calls
        value = call.payload.value() if call.payload else None
        require_equal("the payload", value, {"number": 1})


async def _begun(scene: Scene, **terms: object) -> tuple[Lease, Changes]:
    await scene.publish(**terms)
    lease = await scene.acquire(scene.one, "one")
    changes = scene.one.changes(lease)
    await changes.begin()
    return lease, changes


async def _read(changes: Changes) -> list[DueRow]:
    """Look, and read everything that was seen."""
    learned: list[DueRow] = []

    def learn(rows: Sequence[DueRow]) -> None:
        learned.extend(rows)

    await changes.look()
    while changes.has_more:
        await changes.read(learn)
    return learned


async def _record(scene: Scene, lease: Lease, intent_id: IntentId, outcome: Outcome) -> None:
    [told] = await scene.one.record_attempts(lease, [Result(intent_id, outcome, None, 0.0)])
    require_equal("a result under the lease", told.verdict, "applied")


async def _in_pages(scene: Scene, lease: Lease, priority: int) -> list[IntentId]:
    page = await scene.one.refresh_due_rows("one", [lease], [scene.target], 1)
    page = [row for row in page if row.priority == priority]
    read: list[IntentId] = []
    while page:
        read += [row.intent_id for row in page]
        last = page[-1]
        if last.due_at is None:
            break
        after = {scene.target: {priority: (last.due_at, last.intent_id)}}
        page = await scene.one.refresh_due_rows("one", [lease], [scene.target], 1, 0, after)
    return read


CASES = cases(
    ("cluster",),
    change_after_the_begin_is_read,
    rows_of_concurrent_writers_are_all_read,
    later_version_of_a_row_is_greater,
    change_is_certainly_read_only_after_it_was_read,
    changes_of_another_lease_are_not_read,
    full_reload_reads_every_due_row_in_order,
    window_is_bounded_per_target_and_priority,
    held_row_is_a_change_and_never_due,
    finished_row_is_not_due,
    content_comes_with_a_row_or_with_its_mark,
)
