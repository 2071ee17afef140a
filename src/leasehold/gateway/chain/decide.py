"""What to do about the open slots of an account, given one consistent view of the chain.

`decide` is a pure function: it reads nothing, and the same input gives the same actions. Whoever
calls it records the actions under the lease of the account, and only then sends bytes.

A slot goes through these states, and back again in a reorg:

    unsigned ──► stored ──► sent ──► mined ──► final
                              └──────────────► displaced: somebody else used its nonce

- **Sign** what has no version. Sign again with higher fees what has been the lowest unmined slot
  for some blocks, and every unmined slot whose top version cannot pay the next base fee. Sign a
  no-op over a call that is to be cancelled.
- **Send** the stored bytes of the top version if the node does not know it, once a block. At the
  cap of the fees that is all that is done: a version is never dropped.
- An inclusion counts by its block. It is final when the chain says so, or at the contract's depth.
- A nonce that is used up without a version of ours is suspect. It is judged when it is final.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from leasehold.domain.chain import Fees, NodeAnswer, VersionKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from leasehold.domain.chain import Account, Inclusion, Slot, Version

# Nodes refuse a replacement that pays less than this much more.
BUMP_PERCENT_MIN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainView:
    """What the chain says, read in this order: head and final block, the nonces at both, receipts,
    and the head again. If the head has moved, the view is discarded.

    A nonce is the number of transactions that are included at that block: the first one that is
    free. `inclusions` are those of all versions of open slots, by hash. `known` are the hashes that
    the node has, in its pool or in a block. `base_fee` is that of the next block.
    """

    head: int
    final_block: int
    head_nonce: int
    final_nonce: int
    base_fee: int
    inclusions: Mapping[str, Inclusion]
    known: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeePolicy:
    """What fees to pay, and when to raise them. A no-op that cancels has a cap of its own."""

    first: Fees
    cap: int
    cancel_cap: int
    bump_percent: int = BUMP_PERCENT_MIN
    bump_after_blocks: int = 3

    def __post_init__(self) -> None:
        if self.bump_percent < BUMP_PERCENT_MIN:
            raise ValueError(
                f"bump_percent is {self.bump_percent}: nodes refuse a replacement that pays less "
                f"than {BUMP_PERCENT_MIN} percent more"
            )
        if self.cancel_cap < _raised_min(self.cap, self.bump_percent):
            raise ValueError(
                f"cancel_cap is {self.cancel_cap}: it must be at least {self.bump_percent} percent "
                f"above the cap of {self.cap}, or a call at its cap cannot be cancelled"
            )
        if self.bump_after_blocks < 1:
            raise ValueError(
                f"bump_after_blocks is {self.bump_after_blocks}: it must be at least 1"
            )


def _raised_min(fee: int, percent: int) -> int:
    return -(-fee * (100 + percent) // 100)


@dataclass(frozen=True, slots=True)
class Sign:
    """Sign a version, store it as `number`, and send it. Storing refuses another number."""

    nonce: int
    number: int
    kind: VersionKind
    fees: Fees


@dataclass(frozen=True, slots=True)
class Send:
    """Send the stored bytes of a version again."""

    nonce: int
    number: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Open a slot without an intent, because the slots above it cannot be mined without it."""

    nonce: int


@dataclass(frozen=True, slots=True)
class NoteMined:
    """Record that a version is in a block."""

    nonce: int
    inclusion: Inclusion


@dataclass(frozen=True, slots=True)
class NoteUnmined:
    """Record that the block of a version is not on the chain any more."""

    nonce: int


@dataclass(frozen=True, slots=True)
class NoteLowest:
    """Record which slot is the lowest unmined one; its age counts from this block."""

    nonce: int
    since: int


@dataclass(frozen=True, slots=True)
class Finalise:
    """Record that a version is final: the outcome of its intent is known."""

    nonce: int
    inclusion: Inclusion
    kind: VersionKind


@dataclass(frozen=True, slots=True)
class Displace:
    """Record that a transaction that is not ours used the nonce. The intent had no effect."""

    nonce: int


@dataclass(frozen=True, slots=True)
class HoldAccount:
    """Allocate nothing more: the nonces say that somebody else uses the key."""

    used_nonce: int


@dataclass(frozen=True, slots=True)
class FinalityWentBack:
    """Alert, and send the stored bytes of the slots from here to below `until` again."""

    nonce: int
    until: int


Action: TypeAlias = (
    Sign
    | Send
    | Fill
    | NoteMined
    | NoteUnmined
    | NoteLowest
    | Finalise
    | Displace
    | HoldAccount
    | FinalityWentBack
)


def decide(
    account: Account, slots: Sequence[Slot], view: ChainView, policy: FeePolicy
) -> list[Action]:
    """Return what to do about the open slots, lowest nonce first.

    `slots` are all slots of the account that are not final, in the order of their nonces.
    """
    actions = [*_about_account(account, view), *_holes(slots, view)]
    lowest_since: int | None = None
    is_lowest = True
    for slot in slots:
        if slot.nonce < view.head_nonce:
            actions += _used(slot, view)
        elif _inclusion(slot, view) is None:  # else the view contradicts itself: look again
            if slot.inclusion is not None:
                actions.append(NoteUnmined(slot.nonce))
            if is_lowest:
                lowest_since = _lowest_since(account, slot.nonce, view)
                if lowest_since is None:
                    actions.append(NoteLowest(slot.nonce, view.head))
            actions += _unmined(slot, lowest_since if is_lowest else None, view, policy)
            is_lowest = False
    return actions


def _about_account(account: Account, view: ChainView) -> Iterator[Action]:
    if view.final_nonce < account.final_nonce:
        yield FinalityWentBack(view.final_nonce, account.final_nonce)
    if view.head_nonce > account.next_nonce:
        yield HoldAccount(view.head_nonce)


def _holes(slots: Sequence[Slot], view: ChainView) -> Iterator[Action]:
    """Fill the nonces between open slots that have no slot."""
    for below, above in pairwise(slots):
        yield from map(Fill, range(max(below.nonce + 1, view.head_nonce), above.nonce))


def _lowest_since(account: Account, nonce: int, view: ChainView) -> int | None:
    """Return since when a slot has been the lowest unmined one; None if only from now on."""
    is_known = account.lowest_nonce == nonce and account.lowest_since <= view.head
    return account.lowest_since if is_known else None


def _inclusion(slot: Slot, view: ChainView) -> Inclusion | None:
    for version in slot.versions:
        if version.tx_hash in view.inclusions:
            return view.inclusions[version.tx_hash]
    return None


def _kind(slot: Slot, tx_hash: str) -> VersionKind:
    return next(one.kind for one in slot.versions if one.tx_hash == tx_hash)


def _used(slot: Slot, view: ChainView) -> Iterator[Action]:
    """Judge a slot whose nonce is used up at the head."""
    inclusion = _inclusion(slot, view)
    is_final = slot.nonce < view.final_nonce
    if inclusion is None:
        if is_final:
            yield Displace(slot.nonce)
        elif slot.inclusion is not None:
            yield NoteUnmined(slot.nonce)
    elif is_final and inclusion.block_number <= view.final_block:
        yield Finalise(slot.nonce, inclusion, _kind(slot, inclusion.tx_hash))
    elif inclusion != slot.inclusion:
        yield NoteMined(slot.nonce, inclusion)


def _unmined(
    slot: Slot, lowest_since: int | None, view: ChainView, policy: FeePolicy
) -> Iterator[Action]:
    """Bring a slot forward that is in no block. `lowest_since` is set for the lowest one."""
    top = slot.top
    if top is None:
        yield Sign(slot.nonce, 1, slot.wanted_kind, policy.first)
    elif top.expires_at is not None and top.expires_at < view.final_block:
        # No version can be mined any more, so no node compares the next one with them.
        yield Sign(slot.nonce, top.number + 1, slot.wanted_kind, top.fees)
    elif top.kind is not slot.wanted_kind or (
        top.tried_at is not None and _needs_more(top, lowest_since, view, policy)
    ):
        cap = policy.cap if slot.wanted_kind is VersionKind.CALL else policy.cancel_cap
        fees = top.fees.raised(policy.bump_percent, view.base_fee, cap)
        if fees is not None:
            yield Sign(slot.nonce, top.number + 1, slot.wanted_kind, fees)
        else:
            yield from _send(slot.nonce, top, view)
    else:
        yield from _send(slot.nonce, top, view)


def _needs_more(top: Version, lowest_since: int | None, view: ChainView, policy: FeePolicy) -> bool:
    """Say whether a version that was sent has to be replaced by one that pays more.

    A node that holds another transaction of the nonce is no reason: that one may be mined.
    """
    if view.base_fee > top.fees.max_fee or top.answer is NodeAnswer.FEE_TOO_LOW:
        return True
    if lowest_since is None:
        return False
    return view.head - max(lowest_since, top.signed_at) >= policy.bump_after_blocks


def _send(nonce: int, top: Version, view: ChainView) -> Iterator[Action]:
    is_tried = top.tried_at is not None and top.tried_at >= view.head
    if top.tx_hash not in view.known and not is_tried:
        yield Send(nonce, top.number)
