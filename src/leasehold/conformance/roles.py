"""Cases of roles: each may do its own, and nothing else, whatever the login could do."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from leasehold.conformance.scene import (
    NOTE,
    OPERATOR,
    Scene,
    cases,
    require,
    require_equal,
    require_refused,
)
from leasehold.domain.api_token import TokenScope
from leasehold.domain.errors import AccessDenied

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasehold.domain.intent import IntentId
    from leasehold.store.protocol import Store

    Call = Callable[[Store], Awaitable[object]]

_ROLES = ("ingest", "executor", "operator", "readonly", "auditor", "api")
_READERS = {"readonly", "operator", "auditor"}


async def role_may_do_its_own_and_nothing_else(scene: Scene) -> None:
    """A process that was taken over can do no more than its own work."""
    await scene.publish()
    [intent_id] = await scene.enqueue()
    async with AsyncExitStack() as opened:
        for role in _ROLES:
            database = scene.open_as(f"leasehold_{role}")
            store = (await opened.enter_async_context(database)).store
            for name, (roles, call) in _calls(scene, intent_id).items():
                if role in roles:
                    await call(store)
                else:
                    await require_refused(f"{name} as {role}", AccessDenied, call(store))


async def stores_of_the_api_have_one_role_each(scene: Scene) -> None:
    """One process, one login, and no request has more rights than its token."""
    await scene.publish()
    async with scene.database.role_stores() as stores:
        await stores.check_schema()
        intent_id = await stores.ingest.enqueue_intent(scene.new(7))
        [seen] = await stores.reader.read_status([intent_id])
        require_equal("the reader sees", seen.intent_id, intent_id)
        content = await stores.auditor.read_content(intent_id)
        value = content.payload.value() if content and content.payload else None
        require_equal("the auditor reads", value, 7)
        told = await stores.operator.cancel_intent(intent_id, OPERATOR, NOTE)
        require_equal("the operator cancels", told, "cancelled")
        await stores.api.renew_api_instance(scene.target, {}, 60)
        tokens = await stores.api.read_active_tokens()
        require(scene.target not in {one.name for one in tokens.values()}, "a token of nobody")


async def token_is_known_by_its_hash_until_it_is_revoked(scene: Scene) -> None:
    """The store never learns the token itself."""
    token_hash = secrets.token_bytes(32)
    made = await scene.one.create_token(
        name=scene.target,
        token_hash=token_hash,
        scopes=[TokenScope.INGEST],
        targets=[scene.target],
        operator=OPERATOR,
    )
    found = (await scene.other.read_active_tokens()).get(token_hash)
    require_equal("the token", found, made)
    listed = [one.name for one in await scene.other.list_tokens(limit=1000)]
    require(scene.target in listed, "a token is not listed")
    verdicts = [str(await scene.other.revoke_token(scene.target, OPERATOR)) for _ in range(2)]
    require_equal("verdicts", verdicts, ["revoked", "already_revoked"])
    require(token_hash not in await scene.one.read_active_tokens(), "a revoked token is active")


def _calls(scene: Scene, intent_id: IntentId) -> dict[str, tuple[set[str], Call]]:
    """Return calls with the roles that may make them."""
    executor, ingest, operator = {"executor"}, {"ingest"}, {"operator"}
    terms = {"scope": "cluster", "guarantee": "keyed", "gateway": None, "lease_name": scene.target}
    readers = _READERS | executor
    return {
        "enqueue_intents": (ingest, lambda store: store.enqueue_intents([scene.new()])),
        "enqueue_intent": (ingest, lambda store: store.enqueue_intent(scene.new())),
        "notify_targets": (
            ingest | executor,
            lambda store: store.notify_targets([scene.target]),
        ),
        "acquire_lease": (executor, lambda store: store.acquire_lease(scene.lease_name, "r", 60)),
        "repair": (executor, lambda store: store.repair_missed_deadlines(1, "r")),
        "renew_instance": (
            executor,
            lambda store: store.renew_instance(scene.target, "worker", [], {}, 60),
        ),
        "publish_contract": (
            operator,
            lambda store: store.publish_contract(scene.target, terms, OPERATOR),
        ),
        "retry_intent_now": (
            operator,
            lambda store: store.retry_intent_now(intent_id, OPERATOR, NOTE),
        ),
        "read_status": (readers, lambda store: store.read_status([intent_id])),
        "list_intents": (_READERS, lambda store: store.list_intents(target=scene.target)),
        "read_events": (_READERS, lambda store: store.read_events(None, 1)),
        "read_content": ({"auditor"}, lambda store: store.read_content(intent_id)),
        "read_active_tokens": ({"api"}, lambda store: store.read_active_tokens()),
        "revoke_token": (set(), lambda store: store.revoke_token(scene.target, OPERATOR)),
    }


CASES = cases(
    ("cluster",),
    role_may_do_its_own_and_nothing_else,
    stores_of_the_api_have_one_role_each,
    token_is_known_by_its_hash_until_it_is_revoked,
)
