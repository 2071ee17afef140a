"""The demo shortens ids and holders without making them look alike."""

from __future__ import annotations

from uuid import UUID

from leasehold.demo.view import short_holder, short_id

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
