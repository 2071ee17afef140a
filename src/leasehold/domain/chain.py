"""What we know of an account on a chain: its slots, and the signed versions of each.

A slot is one nonce. It is bound to its intent, or to a gap filler, for ever. A version is one
signed transaction of a slot: the first one, the same with higher fees, or a no-op that takes its
place. All versions of a slot carry one nonce, so at most one of them takes effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasehold.domain.intent import IntentId


class VersionKind(StrEnum):
    """What a version does if it is the one that is mined."""

    CALL = "call"  # what the intent wants
    NOOP = "noop"  # nothing: a transfer to self, which uses the nonce up


class NodeAnswer(StrEnum):
    """What a node said when a version was last sent to it."""

    TAKEN = "taken"  # new to the node, or already known
    FEE_TOO_LOW = "fee_too_low"  # for the next block, or for the node's pool
    REPLACEMENT_UNDERPRICED = "replacement_underpriced"  # the node holds another one of this nonce
    NONCE_TOO_LOW = "nonce_too_low"  # the nonce is used up, perhaps by another version of ours
    REFUSED = "refused"  # for another reason
    LOST = "lost"  # there was no answer


@dataclass(frozen=True, slots=True, order=True)
class Fees:
    """The most that a version pays, in the chain's smallest unit per unit of work.

    With legacy fees, both are the one price. On a chain with tips, both are the tip.
    """

    max_fee: int
    priority_fee: int

    def __post_init__(self) -> None:
        if not 0 <= self.priority_fee <= self.max_fee:
            raise ValueError(
                f"a priority fee of {self.priority_fee} does not fit a fee of {self.max_fee}: "
                "it must be between 0 and the fee"
            )

    def raised(self, percent: int, base_fee: int, cap: int) -> Fees | None:
        """Return fees that replace these: both higher by `percent`, and enough for the base fee to
        double. None if that is above the cap: nodes refuse a replacement that is raised by less.
        """
        max_fee, priority_fee = _more(self.max_fee, percent), _more(self.priority_fee, percent)
        if max_fee > cap:
            return None
        max_fee = min(cap, max(max_fee, 2 * base_fee + priority_fee))
        return Fees(max_fee, min(priority_fee, max_fee))


def _more(fee: int, percent: int) -> int:
    return max(fee + 1, -(-fee * (100 + percent) // 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One signed transaction of a slot, without its bytes.

    `signed_at` and `tried_at` are the heads of the chain at which it was signed and last sent; None
    if it was never sent. After the block `expires_at` it cannot be mined any more; None: it always
    can.
    """

    number: int
    tx_hash: str
    kind: VersionKind
    fees: Fees
    signed_at: int
    tried_at: int | None = None
    answer: NodeAnswer | None = None
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class Inclusion:
    """That a version is in a block. `is_success` is false if it reverted, which uses the nonce."""

    tx_hash: str
    block_number: int
    block_hash: str
    is_success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One nonce of an account that is not final yet, with its versions in the order of numbers."""

    nonce: int
    intent_id: IntentId | None  # None: a gap filler
    versions: tuple[Version, ...] = ()
    is_cancel_wanted: bool = False
    inclusion: Inclusion | None = None  # as recorded

    @property
    def top(self) -> Version | None:
        """The last version, the only one that is sent."""
        return self.versions[-1] if self.versions else None

    @property
    def wanted_kind(self) -> VersionKind:
        """What its next version must do. A slot that became a no-op stays one."""
        was_noop = self.top is not None and self.top.kind is VersionKind.NOOP
        is_call = self.intent_id is not None and not self.is_cancel_wanted and not was_noop
        return VersionKind.CALL if is_call else VersionKind.NOOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is recorded of an account.

    The slots from `final_nonce` on are not final. `next_nonce` is that of the next slot.
    `lowest_nonce` is the lowest slot that was not mined when we last looked, and `lowest_since` the
    head at which it became that.
    """

    final_nonce: int
    next_nonce: int
    lowest_nonce: int | None = None
    lowest_since: int = 0
