"""The conformance suite of stores, on every installed PostgreSQL; and stores that must fail it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from leasehold.conformance import (
    fences,
    items,
    leases,
    ledger,
    operators,
    stream_pauses,
    streams,
)
from leasehold.conformance.scene import NotConforming, Scene
from leasehold.conformance.suite import CASES, cases_for
from leasehold.domain.errors import LeaseholdError
from leasehold.store.database import database_at
from leasehold.store.pool_settings import PoolSettings
from tests.support.database import Database
from tests.support.mutants import mutate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from leasehold.store.database import Database as LeaseholdDatabase
    from tests.support.servers import Server


@pytest.fixture(scope="module")
def shared(server: Server) -> Iterator[Database]:
    """One database for all cases: each uses names of its own."""
    database = Database(server, server.create_database())
    yield database
    database.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(shared: Database) -> AsyncIterator[tuple[LeaseholdDatabase, ...]]:
    """Two processes, as far as the database can tell."""
    async with database_at(shared.url) as one, database_at(shared.url) as other:
        yield one, other


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_store_conforms(shared, processes, case):
    assert case in cases_for(processes[0])
    await case.run(Scene(*processes, opener(shared), case.scope))


def opener(database):
    return lambda role: database_at(database.url, PoolSettings(role=role))


def test_each_case_has_a_name_of_its_own_and_a_sentence():
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.sentence.endswith(".") for case in CASES)


def test_cases_of_a_scope_that_is_not_served_are_left_out():
    class OfClusters:
        scopes = frozenset({"cluster"})

    kept = cases_for(OfClusters())
    assert {case.scope for case in kept} == {"cluster"}
    assert {case.run for case in CASES} - {case.run for case in kept}


@pytest.fixture
async def scene(database):
    async with database_at(database.url) as one, database_at(database.url) as other:
        yield Scene(one, other, opener(database))


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
            fences.former_holder_reads_marks_and_records_nothing,
            WITHOUT_FENCE,
            "under a lost lease was accepted",
        ),
    ],
)
async def test_store_that_breaks_a_rule_does_not_conform(database, scene, case, mutation, found):
    database.owner_execute(mutation)
    with pytest.raises(NotConforming, match=found):
        await case(scene)


# A function, what is changed in it, and the case and scope that must find it.
BROKEN = [
    (
        leases.epoch_rises_with_every_grant_and_never_with_a_renewal,
        "cluster",
        "take_lease",
        r"l\.lease_epoch \+ 1",
        "l.lease_epoch",
    ),
    (
        fences.takeover_puts_begun_calls_in_doubt,
        "cluster",
        "take_lease",
        r"PERFORM leasehold\.put_calls_in_doubt\(.*?\);",
        "",
    ),
    (
        fences.takeover_puts_marked_calls_in_doubt,
        "cluster",
        "put_calls_in_doubt",
        r"OR call\.intent_id IS NOT NULL",
        "",
    ),
    (
        fences.result_of_a_former_attempt_is_superseded,
        "cluster",
        "judge_outcomes",
        r"o\.attempt_no <> ledger\.attempt_no",
        "false",
    ),
    (
        ledger.last_attempt_of_the_contract_ends_the_intent,
        "item",
        "judge_outcomes",
        r"ledger\.attempt_no >= c\.attempts_max",
        "false",
    ),
    (
        ledger.doubt_without_a_lookup_is_held_for_a_person,
        "stream",
        "judge_outcomes",
        r"c\.guarantee = 'blind'",
        "false",
    ),
    (
        items.stale_finished_and_unknown_results_are_told_apart,
        "item",
        "missing_verdict",
        r"'already_terminal'",
        "'not_found'",
    ),
    (
        streams.only_the_head_of_a_stream_can_begin,
        "stream",
        "begin_stream_attempts",
        r"WHEN p\.awaits_confirmation.*?THEN 'out_of_order'",
        "",
    ),
    (
        streams.call_in_flight_keeps_its_stream_until_the_second_expiry,
        "stream",
        "is_stream_begun",
        r"coalesce\(bool_or.*?false\)",
        "false",
    ),
    (
        stream_pauses.cancelled_head_gives_way_to_the_next,
        "stream",
        "append_and_continue_streams",
        r"PERFORM leasehold\.\w+\(v_streams, '\{\}'.*?\);",
        "",
    ),
    (
        stream_pauses.failed_head_stops_its_stream_until_a_person_resumes_it,
        "stream",
        "pause_failed_streams",
        r"WHERE c\.scope = 'stream' AND",
        "WHERE false AND",
    ),
    (
        operators.call_in_flight_is_not_cancelled,
        "cluster",
        "lock_for_intervention",
        r"pending\.begun_at IS NOT NULL",
        "false",
    ),
]


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("case", "scope", "function", "pattern", "replacement"),
    BROKEN,
    ids=[row[0].__name__ for row in BROKEN],
)
async def test_store_with_a_broken_function_does_not_conform(
    database, case, scope, function, pattern, replacement
):
    mutate(database, function, pattern, replacement)
    async with database_at(database.url) as one, database_at(database.url) as other:
        with pytest.raises((NotConforming, LeaseholdError)):
            await case(Scene(one, other, opener(database), scope))


async def test_store_whose_lease_is_never_free_does_not_conform(scene):
    await scene.other.acquire_lease(scene.lease_name, "somebody", 600)
    with pytest.raises(NotConforming, match="a free lease was not granted"):
        await leases.former_holder_neither_renews_nor_releases(scene)
