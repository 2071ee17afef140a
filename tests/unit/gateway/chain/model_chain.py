"""A chain with one account of ours, and what the database would record of it; for `decide`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, assert_never

from leasehold.domain.chain import Account, Fees, Inclusion, NodeAnswer, Slot, Version, VersionKind
from leasehold.gateway.chain.decide import (
    ChainView,
    Displace,
    FeePolicy,
    Fill,
    Finalise,
    FinalityWentBack,
    HoldAccount,
    NoteLowest,
    NoteMined,
    NoteUnmined,
    Send,
    Sign,
    decide,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.domain.intent import IntentId
    from leasehold.gateway.chain.decide import Action

POLICY = FeePolicy(first=Fees(100, 10), cap=1000, cancel_cap=4000, bump_after_blocks=3)
FINAL_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Transaction:
    tx_hash: str
    nonce: int
    fees: Fees
    is_ours: bool = True


@dataclass
class ModelChain:
    """Mines what is in its pool, replaces by the rule of nodes, drops, forgets and reorgs."""

    base_fee: int = 50
    blocks: list[tuple[str, list[Transaction]]] = field(default_factory=list)
    pool: dict[int, Transaction] = field(default_factory=dict)
    _forks: int = 0

    @property
    def head(self) -> int:
        return len(self.blocks)

    @property
    def final_block(self) -> int:
        return max(0, self.head - FINAL_DEPTH)

    def nonce_at(self, block: int) -> int:
        return sum(len(transactions) for _, transactions in self.blocks[:block])

    def send(self, transaction: Transaction) -> NodeAnswer:
        if transaction.nonce < self.nonce_at(self.head):
            return NodeAnswer.NONCE_TOO_LOW
        held = self.pool.get(transaction.nonce)
        if held == transaction:
            return NodeAnswer.TAKEN
        if transaction.fees.max_fee < self.base_fee:
            return NodeAnswer.FEE_TOO_LOW
        if held is not None and not _replaces(transaction.fees, held.fees):
            return NodeAnswer.REPLACEMENT_UNDERPRICED
        self.pool[transaction.nonce] = transaction
        return NodeAnswer.TAKEN

    def mine(self, most: int = 1000) -> None:
        mined: list[Transaction] = []
        nonce = self.nonce_at(self.head)
        while len(mined) < most and nonce in self.pool:
            if self.pool[nonce].fees.max_fee < self.base_fee:
                break
            mined.append(self.pool.pop(nonce))
            nonce += 1
        self.blocks.append((f"block-{self._forks}-{self.head + 1}", mined))
        self.pool = {n: t for n, t in self.pool.items() if t.fees.max_fee >= self.base_fee}

    def reorg(self, depth: int) -> None:
        """Replace the last blocks by empty ones. What was in them does not return to the pool."""
        depth = min(depth, self.head - self.final_block)
        if depth:
            self._forks += 1
            del self.blocks[-depth:]
            for _ in range(depth):
                self.blocks.append((f"block-{self._forks}-{self.head + 1}", []))

    def drop(self, nonce: int) -> None:
        self.pool.pop(nonce, None)

    def view(self, slots: list[Slot]) -> ChainView:
        ours = {version.tx_hash for slot in slots for version in slot.versions}
        inclusions = {
            one.tx_hash: Inclusion(one.tx_hash, number, block_hash, is_success=True)
            for number, (block_hash, transactions) in enumerate(self.blocks, start=1)
            for one in transactions
            if one.tx_hash in ours
        }
        return ChainView(
            head=self.head,
            final_block=self.final_block,
            head_nonce=self.nonce_at(self.head),
            final_nonce=self.nonce_at(self.final_block),
            base_fee=self.base_fee,
            inclusions=inclusions,
            known=frozenset(one.tx_hash for one in self.pool.values()) | inclusions.keys(),
        )


def _replaces(fees: Fees, held: Fees) -> bool:
    return (
        10 * fees.max_fee >= 11 * held.max_fee and 10 * fees.priority_fee >= 11 * held.priority_fee
    )


@dataclass
class Recorded:
    """What the database has of the account, and what is sent for it."""

    chain: ModelChain
    account: Account = field(default_factory=lambda: Account(final_nonce=0, next_nonce=0))
    slots: dict[int, Slot] = field(default_factory=dict)
    closed: dict[int, Finalise | Displace] = field(default_factory=dict)
    bytes_of: dict[str, Transaction] = field(default_factory=dict)
    is_held: bool = False

    def allocate(self, intent_id: IntentId) -> int:
        nonce = self.account.next_nonce
        self.slots[nonce] = Slot(nonce=nonce, intent_id=intent_id)
        self.account = replace(self.account, next_nonce=nonce + 1)
        return nonce

    def cancel(self, nonce: int) -> None:
        if nonce in self.slots:
            self.slots[nonce] = replace(self.slots[nonce], is_cancel_wanted=True)

    def open_slots(self) -> list[Slot]:
        return [self.slots[nonce] for nonce in sorted(self.slots)]

    def decide(self) -> list[Action]:
        slots = self.open_slots()
        return decide(self.account, slots, self.chain.view(slots), POLICY)

    def reconcile(self, reaches: Callable[[], bool] = lambda: True) -> list[Action]:
        """Decide and act. Without `reaches`, bytes get lost on their way, or their answer does."""
        actions = self.decide()
        for action in actions:
            self.act(action, reaches)
        return actions

    def act(self, action: Action, reaches: Callable[[], bool] = lambda: True) -> None:
        match action:
            case Sign() | Send():
                self._sign_or_send(action, reaches)
            case NoteMined() | NoteUnmined():
                inclusion = action.inclusion if isinstance(action, NoteMined) else None
                self._change(action.nonce, inclusion=inclusion)
            case NoteLowest():
                self.account = replace(
                    self.account, lowest_nonce=action.nonce, lowest_since=action.since
                )
            case Finalise() | Displace():
                assert action.nonce not in self.closed, "a slot ends once"
                self.closed[action.nonce] = action
                del self.slots[action.nonce]
                self.account = replace(
                    self.account, final_nonce=max(self.account.final_nonce, action.nonce + 1)
                )
            case HoldAccount():
                self.is_held = True
            case Fill() | FinalityWentBack():
                raise AssertionError("our slots are dense, and no final block goes back")
            case _:
                assert_never(action)

    def _sign_or_send(self, action: Sign | Send, reaches: Callable[[], bool]) -> None:
        if isinstance(action, Sign):
            self._sign(action)
            if not reaches():
                return
        top = self.slots[action.nonce].top
        assert top is not None
        assert top.number == action.number, "only the top version is sent"
        self._send(action.nonce, reaches)

    def _sign(self, action: Sign) -> None:
        slot = self.slots[action.nonce]
        assert action.number == len(slot.versions) + 1, "storing refuses another number"
        if slot.top is not None:
            assert _replaces(action.fees, slot.top.fees), "nothing below ten percent is signed"
        cap = POLICY.cap if action.kind is VersionKind.CALL else POLICY.cancel_cap
        assert action.fees.max_fee <= cap
        version = Version(
            number=action.number,
            tx_hash=f"{action.nonce}/{action.number}",
            kind=action.kind,
            fees=action.fees,
            signed_at=self.chain.head,
        )
        self.bytes_of[version.tx_hash] = Transaction(version.tx_hash, action.nonce, action.fees)
        self._change(action.nonce, versions=(*slot.versions, version))

    def _send(self, nonce: int, reaches: Callable[[], bool]) -> None:
        slot = self.slots[nonce]
        assert slot.top is not None
        answer = self.chain.send(self.bytes_of[slot.top.tx_hash])
        noted = replace(
            slot.top,
            tried_at=self.chain.head,
            answer=answer if reaches() else NodeAnswer.LOST,
        )
        self._change(nonce, versions=(*slot.versions[:-1], noted))

    def _change(self, nonce: int, **changes: object) -> None:
        self.slots[nonce] = replace(self.slots[nonce], **changes)  # type: ignore[arg-type]
