"""The conformance suite of stores, on every installed PostgreSQL; and a store that must fail it."""

from __future__ import annotations

import pytest

from leasehold.conformance import leases
from leasehold.conformance.scene import NotConforming, Scene
from leasehold.store.database import database_at


@pytest.fixture
async def scene(database):
    async with database_at(database.url) as one, database_at(database.url) as other:
        yield Scene(one, other)


@pytest.mark.parametrize("case", leases.CASES, ids=lambda case: case.__name__)
async def test_store_conforms(scene, case):
    await case(scene)


WITHOUT_FENCE = """
CREATE OR REPLACE FUNCTION leasehold.require_lease(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_in_grace boolean
) RETURNS void LANGUAGE plpgsql AS $$ BEGIN END $$
"""
RENEWS_ANYTHING = """
CREATE OR REPLACE FUNCTION leasehold.renew_lease(
  p_lease_name text, p_holder_id text, p_lease_epoch bigint, p_lease_seconds double precision,
  p_grace_seconds double precision DEFAULT 0
) RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RETURN clock_timestamp(); END $$
"""


@pytest.mark.parametrize(
    ("case", "mutation", "found"),
    [
        (
            leases.former_holder_neither_renews_nor_releases,
            RENEWS_ANYTHING,
            "a renewal under a lost lease was accepted",
        ),
        (
            leases.former_holder_reads_marks_and_records_nothing,
            WITHOUT_FENCE,
            "under a lost lease was accepted",
        ),
    ],
)
async def test_store_that_breaks_a_rule_does_not_conform(database, scene, case, mutation, found):
    database.owner_execute(mutation)
    with pytest.raises(NotConforming, match=found):
        await case(scene)


async def test_store_whose_lease_is_never_free_does_not_conform(scene):
    await scene.other.acquire_lease(scene.lease_name, "somebody", 600)
    with pytest.raises(NotConforming, match="a free lease was not granted"):
        await leases.former_holder_neither_renews_nor_releases(scene)
