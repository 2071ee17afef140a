"""What the database answers per row. A verdict is an answer, not an error: one bad row must not
fail its neighbours. Stale, finished and missing are different things, and stay so here.
"""

from __future__ import annotations

from enum import StrEnum


class EnqueueVerdict(StrEnum):
    """Of one intent that was given to enqueue; only ACCEPTED wrote something."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    UNKNOWN_TARGET = "unknown_target"
    INVALID = "invalid"


class BeginVerdict(StrEnum):
    """Of one call that is about to be made: only after BEGUN may it be made."""

    BEGUN = "begun"
    LEASE_LOST = "lease_lost"
    ALREADY_BEGUN = "already_begun"
    NOT_DUE = "not_due"
    OUT_OF_ORDER = "out_of_order"
    CEILING_REACHED = "ceiling_reached"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"


class RecordVerdict(StrEnum):
    """Of one result; only APPLIED wrote something. None of the others is worth a retry."""

    APPLIED = "applied"
    LEASE_LOST = "lease_lost"
    CEILING_REACHED = "ceiling_reached"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"


class RenewVerdict(StrEnum):
    """Of one claim or lease in a heartbeat."""

    RENEWED = "renewed"
    LEASE_LOST = "lease_lost"


class ReleaseVerdict(StrEnum):
    """Of one claim or lease that is given back; BEGUN: only a result ends it."""

    RELEASED = "released"
    BEGUN = "begun"
    LEASE_LOST = "lease_lost"


class CancelVerdict(StrEnum):
    """Of an operator's cancel; only CANCELLED wrote something."""

    CANCELLED = "cancelled"
    IN_FLIGHT = "in_flight"
    IN_DOUBT = "in_doubt"
    CONFIRMING = "confirming"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"


class ResolveVerdict(StrEnum):
    """Of an operator's word on a doubt; only RESOLVED wrote something."""

    RESOLVED = "resolved"
    IN_FLIGHT = "in_flight"
    NOT_IN_DOUBT = "not_in_doubt"
    ALREADY_TERMINAL = "already_terminal"
    NOT_FOUND = "not_found"


class RedriveVerdict(StrEnum):
    """Of one finished intent that is to be tried anew; only REDRIVEN wrote something."""

    REDRIVEN = "redriven"
    ALREADY_REDRIVEN = "already_redriven"
    ALREADY_ACCEPTED = "already_accepted"
    NOT_TERMINAL = "not_terminal"
    UNKNOWN_TARGET = "unknown_target"
    NOT_FOUND = "not_found"


class RevokeVerdict(StrEnum):
    """Of the end of an API token; only REVOKED wrote something."""

    REVOKED = "revoked"
    ALREADY_REVOKED = "already_revoked"
    NOT_FOUND = "not_found"
