"""The demo shortens ids and holders without making them look alike."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from rich.console import Console

from leasehold.demo.view import ledger_table, short_holder, short_id
from leasehold.store.demo import LedgerRow

# As the database numbers the intents of one batch: only the digits after the version differ.
BATCH = [
    f"01a1ec36-f9b4-7{place >> 2:03x}-{8 | place & 3:x}3f9-9a50d577f046" for place in range(1, 17)
]


def test_short_ids_of_one_batch_differ():
    assert len({short_id(UUID(one)) for one in BATCH}) == len(BATCH)


def test_short_id_is_a_part_of_the_id_and_can_be_searched_for():
    assert all(short_id(UUID(one)) in one for one in BATCH)


def test_short_holder_leaves_the_host_out():
    assert short_holder("a-host-4443-fc582e71") == "4443-fc582e71"


@pytest.mark.parametrize(("width", "is_whole"), [(80, False), (120, True)])
def test_id_of_the_ledger_is_whole_in_a_window_that_has_room_for_it(width, is_whole):
    row = LedgerRow(
        intent_id=UUID(BATCH[0]),
        target="payments",
        attempt_no=1,
        state="ZOMBIE_REQUEUE",
        reason="lease_expired and more of it",
        code="200",
        holder="a-host-4443-fc582e71",
        finished_at=datetime(2026, 11, 19, tzinfo=UTC),
    )
    console = Console(width=width)
    with console.capture() as captured:
        console.print(ledger_table([row], width))
    assert (BATCH[0] in captured.get()) == is_whole
    for part in (short_id(row.intent_id), row.state, row.target, "4443-fc582e71"):
        assert part in captured.get()
