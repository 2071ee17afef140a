"""Verdicts: the database's answer for each row of a batch.

A verdict is not an error, because one bad row must not fail the others. Stale (LEASE_LOST),
finished (ALREADY_TERMINAL) and missing (NOT_FOUND) are different verdicts. So is an answer about an
earlier attempt than the next one on the ledger (SUPERSEDED).
"""

from __future__ import annotations

from enum import StrEnum


class EnqueueVerdict(StrEnum):
    """The result of enqueuing one intent. Only ACCEPTED wrote something."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    UNKNOWN_TARGET = "unknown_target"
    TOO_LARGE = "too_large"
    INVALID = "invalid"


class BatchVerdict(StrEnum):
    """The result for one intent of a batch that was sent to the API.

    ACCEPTED wrote the intent. After UNAVAILABLE the outcome is unknown. No other verdict wrote.
    """

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    UNKNOWN_TARGET = "unknown_target"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    FORBIDDEN = "forbidden"
    QUEUE_FULL = "queue_full"
    UNAVAILABLE = "unavailable"

    @property
    def is_committed(self) -> bool:
        """Whether the intent is in the database."""
        return self in {self.ACCEPTED, self.DUPLICATE}

    @property
    def is_temporary(self) -> bool:
        """Whether the intent may be accepted later."""
        return self in {self.QUEUE_FULL, self.UNAVAILABLE}


class BeginVerdict(StrEnum):
    """The result of marking one call as begun. Only after BEGUN may it be made.

    LOCKED: somebody else has locked the row for the moment. Begin it later.
    """

    BEGUN = "begun"
    LEASE_LOST = "lease_lost"
    ALREADY_BEGUN = "already_begun"
    NOT_DUE = "not_due"
    OUT_OF_ORDER = "out_of_order"
    PAUSED = "paused"
    CEILING_REACHED = "ceiling_reached"
    LOCKED = "locked"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"


class RecordVerdict(StrEnum):
    """The result of recording one outcome. Only APPLIED wrote something.

    LOCKED: somebody else has locked the row for the moment. Record it later; never retry the
    others.
    """

    APPLIED = "applied"
    LEASE_LOST = "lease_lost"
    SUPERSEDED = "superseded"
    CEILING_REACHED = "ceiling_reached"
    LOCKED = "locked"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"


class RenewVerdict(StrEnum):
    """The result of renewing one claim or lease.

    LOCKED: somebody else has locked the row of a claim, or of a stream's lease. It lasts as long as
    before; ask again.
    """

    RENEWED = "renewed"
    LEASE_LOST = "lease_lost"
    LOCKED = "locked"


class ReleaseVerdict(StrEnum):
    """The result of releasing one claim or lease. BEGUN: only a result can end it."""

    RELEASED = "released"
    BEGUN = "begun"
    LEASE_LOST = "lease_lost"


class CancelVerdict(StrEnum):
    """The result of cancelling an intent. Only CANCELLED wrote something."""

    CANCELLED = "cancelled"
    IN_FLIGHT = "in_flight"
    IN_DOUBT = "in_doubt"
    CONFIRMING = "confirming"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"


class ResolveVerdict(StrEnum):
    """The result of resolving an in-doubt intent. Only RESOLVED wrote something."""

    RESOLVED = "resolved"
    IN_FLIGHT = "in_flight"
    NOT_IN_DOUBT = "not_in_doubt"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"


class RetryNowVerdict(StrEnum):
    """The result of making a waiting intent due now. Only DUE_NOW wrote something."""

    DUE_NOW = "due_now"
    ALREADY_DUE = "already_due"
    SCHEDULED = "scheduled"
    IN_FLIGHT = "in_flight"
    HELD = "held"
    IN_DOUBT = "in_doubt"
    CONFIRMING = "confirming"
    BEHIND_HEAD = "behind_head"
    PAUSED = "paused"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"


class RedriveVerdict(StrEnum):
    """The result of redriving a finished intent. Only REDRIVEN wrote something."""

    REDRIVEN = "redriven"
    ALREADY_REDRIVEN = "already_redriven"
    ALREADY_ACCEPTED = "already_accepted"
    NOT_TERMINAL = "not_terminal"
    UNKNOWN_TARGET = "unknown_target"
    NOT_FOUND = "not_found"


class PauseVerdict(StrEnum):
    """The result of pausing a stream."""

    PAUSED = "paused"
    NOT_FOUND = "not_found"


class ResumeVerdict(StrEnum):
    """The result of resuming a stream.

    Only RESUMED and STILL_PAUSED wrote something. After the latter the stream is paused for another
    reason.
    """

    RESUMED = "resumed"
    STILL_PAUSED = "still_paused"
    NOT_PAUSED = "not_paused"
    NOT_FOUND = "not_found"

    @property
    def is_done(self) -> bool:
        """Whether a pause was ended."""
        return self in {self.RESUMED, self.STILL_PAUSED}


class SkipVerdict(StrEnum):
    """The result of skipping the head of a stream.

    Only SKIPPED and SKIPPED_PAUSED wrote something. After the latter the stream is still paused.
    """

    SKIPPED = "skipped"
    SKIPPED_PAUSED = "skipped_paused"
    NOT_HEAD = "not_head"
    IN_FLIGHT = "in_flight"
    IN_DOUBT = "in_doubt"
    CONFIRMING = "confirming"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"

    @property
    def is_done(self) -> bool:
        """Whether the head was skipped."""
        return self in {self.SKIPPED, self.SKIPPED_PAUSED}


class RevokeVerdict(StrEnum):
    """The result of revoking an API token. Only REVOKED wrote something."""

    REVOKED = "revoked"
    ALREADY_REVOKED = "already_revoked"
    NOT_FOUND = "not_found"
