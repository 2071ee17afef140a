"""Targets in the database, as executors see them."""

from __future__ import annotations

import pytest

from leasehold.domain.contract import Contract, RetryTerms
from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import NewIntent
from leasehold.gateway.http.terms import HttpTerms
from leasehold.gateway.ledger.terms import LedgerTerms
from leasehold.gateway.python.terms import PythonTerms
from tests.support.sqlstates import refused

pytestmark = pytest.mark.one_server

CONTRACTS = [
    Contract(
        target="sms",
        scope="item",
        guarantee="keyed",
        gateway=HttpTerms(
            url="http://127.0.0.1:8080/keyed",
            lookup_url="http://127.0.0.1:8080/lookup/{key}",
            headers={"X-Team": "sms"},
            secret_headers={"Authorization": "TOKEN"},
            allow_private=True,
        ),
        key_window_seconds=86_400,
        deadline_seconds=12.5,
        retry=RetryTerms(policy="deadline", jitter=0.5),
        rate_per_second=0.1,
    ),
    Contract(
        target="payments",
        scope="cluster",
        guarantee="lookup",
        gateway=PythonTerms(function="a:b", lookup="a:c"),
        lease_seconds=12.5,
        call_timeout_seconds=10,
    ),
    Contract(
        target="letters",
        scope="stream",
        guarantee="blind",
        gateway=PythonTerms(function="a:b"),
        retry=RetryTerms(policy="one_shot"),
        priority=0,
    ),
    *(
        Contract(
            target=f"batches-{scope}",
            scope=scope,
            guarantee="lookup",
            pipeline_max=9 if scope == "stream" else None,
            gateway=LedgerTerms(
                url="https://ledger.example/api",
                stream_header="Grid-Service-Id",
                submissions_max=9 if scope == "stream" else 1,
            ),
        )
        for scope in ("item", "cluster", "stream")
    ),
]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.target)
async def test_contract_comes_back_from_the_database_as_it_was_published(stores, contract):
    version = await stores.operator.publish_contract(contract.target, contract.terms(), "ada")
    published = contract.model_copy(update={"version": version})
    assert await stores.executor.read_contract(contract.target, version) == published
    assert await stores.readonly.read_contracts() == [published]
    again = await stores.operator.publish_contract(contract.target, published.terms(), "ada")
    assert again == version, "the terms read back are the same"


async def test_database_uses_the_terms_of_the_contract(stores, database):
    for contract in CONTRACTS:
        await stores.operator.publish_contract(contract.target, contract.terms(), "ada")
    columns = [
        "scope",
        "guarantee",
        "lease_name",
        "deadline_seconds",
        "lease_seconds",
        "call_timeout_seconds",
        "quarantine_seconds",
        "key_window_seconds",
        "can_look_up",
    ]
    rows = {row["target"]: row for row in database.execute("SELECT * FROM leasehold.contracts")}
    for contract in CONTRACTS:
        row = rows[contract.target]
        assert [row[name] for name in columns] == [getattr(contract, name) for name in columns]
        assert row["retry_policy"] == contract.retry.policy
        assert row["attempts_max"] == contract.retry.attempts_max


async def test_defaults_of_the_database_are_those_of_the_contract(stores):
    for scope in ("item", "stream", "cluster"):
        terms = {"scope": scope, "guarantee": "keyed", "gateway": None}
        await stores.operator.publish_contract("plain", terms, "ada")
        published = await stores.readonly.read_published_contract("plain")
        told = published.contract()
        expected = Contract(target="plain", version=told.version, scope=scope, guarantee="keyed")
        assert told == expected
        assert published.terms.value().items() <= expected.terms().items()


async def test_unreadable_terms_are_reported_and_do_not_hide_other_targets(stores):
    await stores.operator.publish_contract(
        "sms", {"scope": "item", "guarantee": "keyed", "gateway": None}, "ada"
    )
    slow = {"scope": "item", "guarantee": "keyed", "gateway": None, "call_timeout_seconds": 90}
    await stores.operator.publish_contract("slow", slow, "ada")
    refused = {}
    contracts = await stores.executor.read_contracts(refused.__setitem__)
    assert [contract.target for contract in contracts] == ["sms"]
    assert "call_timeout_seconds (90) must be less than lease_seconds (30)" in refused["slow"]
    with pytest.raises(InvalidArgument, match="slow, version 1"):
        await stores.executor.read_contract("slow", 1)


async def test_contracts_are_read_in_their_current_version_or_in_the_one_asked_for(stores):
    for concurrency in (1, 2, 3):
        contract = CONTRACTS[0].model_copy(update={"concurrency": concurrency})
        await stores.operator.publish_contract("sms", contract.terms(), "ada")
    [current] = await stores.executor.read_contracts()
    assert (current.version, current.concurrency) == (3, 3)
    older = await stores.executor.read_contract("sms", 2)
    assert (older.version, older.concurrency) == (2, 2)
    assert await stores.executor.read_contract("sms", 4) is None
    assert await stores.executor.read_contract("nobody", 1) is None


async def test_intent_without_a_priority_has_that_of_its_contract(stores):
    urgent = CONTRACTS[0].model_copy(update={"priority": 0})
    await stores.operator.publish_contract("sms", urgent.terms(), "ada")
    await stores.ingest.enqueue_intents(
        [NewIntent(target="sms", payload=1), NewIntent(target="sms", payload=2, priority=2)]
    )
    claimed = await stores.executor.claim_outbox_batch(10, "w", 30, ["sms"])
    assert {one.payload.raw: one.priority for one in claimed} == {b"1": 0, b"2": 2}


@pytest.mark.parametrize("priority", [-1, 4, 1.5, "1", None, True, [1]])
def test_invalid_priority_is_refused_in_plain_sql_too(outbox, priority):
    with refused("22023"):
        outbox.publish(priority=priority)


def test_priority_in_plain_sql_can_be_any_spelling_of_the_number(outbox):
    outbox.publish(priority=3.0)
    outbox.enqueue()
    assert [claim["priority"] for claim in outbox.claim()] == [3]
