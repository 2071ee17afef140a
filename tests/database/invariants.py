"""Reads the rows of the database, and checks invariants that hold after any call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.database.model import NEVER, TERMINAL, UNCERTAIN, UNIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from psycopg.rows import DictRow

    from tests.database.model import Item, Lease
    from tests.support.outbox import Outbox

_READ = """
SELECT i.intent_id, i.lease_name_of_stream, s.status, s.attempts, i.stream_seq,
       p.intent_id IS NOT NULL AS is_pending, p.attempt_count, p.last_state,
       p.begun_at IS NOT NULL AS is_begun, p.begun_epoch, p.lease_name, p.scope, p.is_claimable,
       p.begun_at, p.claimed_by, p.lease_token, p.awaits_confirmation,
       c.batch_max, c.pipeline_max, p.lease_expires_at IS NOT NULL AS has_expiry,
       {until_due} AS until_due, {until_claim_ends} AS until_claim_ends,
       coalesce(ledger.numbers, '{{}}') AS numbers, coalesce(ledger.states, '{{}}') AS states,
       ledger.last_holder
  FROM (SELECT *, 'stream/' || target || '/' || stream AS lease_name_of_stream
          FROM leasehold.intents WHERE {which}) AS i
  JOIN leasehold.intent_status s ON s.intent_id = i.intent_id
  JOIN leasehold.contracts c ON c.target = i.target AND c.version = i.contract_version
  LEFT JOIN leasehold.outbox_pending p ON p.intent_id = i.intent_id
  LEFT JOIN LATERAL (
    SELECT array_agg(a.attempt_no ORDER BY a.attempt_no) AS numbers,
           array_agg(a.state ORDER BY a.attempt_no) AS states,
           (array_agg(a.holder ORDER BY a.attempt_no DESC))[1] AS last_holder
      FROM leasehold.outbox_attempts a WHERE a.intent_id = i.intent_id) AS ledger ON true
"""
_LEASES = """
SELECT lease_name, holder_id, lease_epoch, {until_expiry} AS until_expiry,
       {until_grace_ends} AS until_grace_ends, {until_pause_ends} AS until_pause_ends,
       ARRAY(SELECT s.kind || ' ' || s.name FROM leasehold.stream_pauses s
              WHERE s.lease_name = l.lease_name AND s.paused_until > clock_timestamp()) AS pauses
  FROM leasehold.leases l WHERE lease_name = ANY (%s)
"""


class DisagreementError(AssertionError):
    """The database differs from the model, or an invariant does not hold."""


def _seconds_until(column: str) -> str:
    return (
        f"CASE WHEN isfinite({column})"
        f" THEN extract(epoch FROM {column} - clock_timestamp())::double precision"
        f" WHEN {column} = 'infinity' THEN 'infinity'"
        f" WHEN {column} IS NOT NULL THEN '-infinity' END"
    )


class Snapshot:
    """All rows of one example: intents by id, leases by name."""

    def __init__(self, rows: Sequence[DictRow], leases: Sequence[DictRow]):
        self.rows = {row["intent_id"]: row for row in rows}
        self.leases = {row["lease_name"]: row for row in leases}

    @classmethod
    def of(
        cls, outbox: Outbox, intent_ids: Sequence[UUID], lease_names: Sequence[str] = ()
    ) -> Snapshot:
        statement = _READ.format(
            which="intent_id = ANY (%s)",
            until_due=_seconds_until("p.due_at"),
            until_claim_ends=_seconds_until("p.lease_expires_at"),
        )
        leases = _LEASES.format(
            until_expiry=_seconds_until("expires_at"),
            until_grace_ends=_seconds_until("grace_expires_at"),
            until_pause_ends=_seconds_until("paused_until"),
        )
        return cls(
            outbox.database.execute(statement, [list(intent_ids)]) if intent_ids else [],
            outbox.database.execute(leases, [list(lease_names)]) if lease_names else [],
        )

    def check_invariants(self) -> None:
        """Check the invariants of each row, without the model."""
        for intent_id, row in self.rows.items():
            for broken in _broken(row, self.leases):
                raise DisagreementError(f"intent {intent_id}: {broken}, in {dict(row)}")
        tokens = [row["lease_token"] for row in self.rows.values() if row["lease_token"]]
        if len(tokens) != len(set(tokens)):
            raise DisagreementError("two claims share a token")

    def check_since(self, before: Snapshot) -> None:
        """Check that a step has only changed what a step may change."""
        for name, lease in before.leases.items():
            if self.leases[name]["lease_epoch"] < lease["lease_epoch"]:
                raise DisagreementError(f"the epoch of {name} fell")
        for intent_id, row in before.rows.items():
            states, older = self.rows[intent_id]["states"], row["states"]
            if states[: len(older)] != older:
                raise DisagreementError(
                    f"the ledger of {intent_id} was rewritten: {older}, {states}"
                )
            if "ZOMBIE_REQUEUE" in states[len(older) :] and row["last_state"] in UNCERTAIN:
                raise DisagreementError(f"the doubt about {intent_id} was forgotten: {states}")
            is_ended = row["is_pending"] and states[-1:] and states[-1] in TERMINAL
            ended_by = self.rows[intent_id]["last_holder"]
            if is_ended and row["is_begun"] and ended_by in ("operator", "reaper"):
                raise DisagreementError(f"{intent_id} was ended while a call was in flight")
        self._check_begun_since(before)

    def _check_begun_since(self, before: Snapshot) -> None:
        """Check the order of the calls that a step has begun in streams."""
        for one, row in self.rows.items():
            older = before.rows.get(one)
            is_new = older is None or not older["is_begun"] or older["states"] != row["states"]
            if not row["is_begun"] or row["scope"] != "stream" or not is_new:
                continue
            stream = [
                other
                for other in self.rows.values()
                if other["is_pending"] and other["lease_name"] == row["lease_name"]
            ]
            awaiting = [other for other in stream if other["awaits_confirmation"]]
            most = max(other["pipeline_max"] for other in stream)
            if most == 1:
                most = row["batch_max"]
            broken = {
                "behind a row that is neither submitted nor begun with it": any(
                    other["stream_seq"] < row["stream_seq"]
                    for other in stream
                    if other not in awaiting and other["begun_at"] != row["begun_at"]
                ),
                "while another call was in flight": any(
                    other["is_begun"] and other["begun_at"] != row["begun_at"] for other in stream
                ),
                "although it awaits its confirmation": row["awaits_confirmation"],
                "with too many others": len([other for other in stream if other["is_begun"]])
                + len(awaiting)
                > most,
            }
            for name, is_broken in broken.items():
                if is_broken:
                    raise DisagreementError(f"{one} was begun {name}: {stream}")

    def compare(self, items: Mapping[UUID, Item], leases: Mapping[str, Lease], now: float) -> None:
        """Check that the rows equal those of the model, in whole units of time."""
        found = {intent_id: _facts(row) for intent_id, row in self.rows.items()}
        _expect_same(found, {item.intent_id: _predicted(item, now) for item in items.values()})
        held = {
            name: (
                row["holder_id"],
                row["lease_epoch"],
                _units(row["until_expiry"]),
                _units(row["until_grace_ends"]),
                (_units(row["until_pause_ends"]), set(row["pauses"])) if row["pauses"] else None,
            )
            for name, row in self.leases.items()
        }
        _expect_same(
            held,
            {
                name: (
                    *(lease.holder, lease.epoch),
                    *(_whole(lease.expires - now), _whole(lease.grace_expires - now)),
                    (_whole(lease.paused_until - now), reasons) if reasons else None,
                )
                for name, lease in leases.items()
                for reasons in [lease.reasons(now)]
            },
        )


def _broken(row: DictRow, leases: Mapping[str, DictRow]) -> list[str]:
    numbers, states = row["numbers"], row["states"]
    terminal = [state for state in states if state in TERMINAL]
    rules = {
        "the ledger has gaps": numbers == list(range(1, len(numbers) + 1)),
        "more than one terminal row": len(terminal) <= 1,
        "a row after the terminal one": not terminal or states[-1] in TERMINAL,
        "pending and finished, or neither": row["is_pending"] == (not terminal),
        "the view miscounts": row["attempts"] == len(numbers),
    }
    if row["is_pending"]:
        in_lease = {row["claimed_by"] is None, row["lease_token"] is None, not row["has_expiry"]}
        lease = leases.get(row["lease_name"])
        rules |= {
            "attempt_count is not the ledger's": row["attempt_count"] == max(numbers, default=0),
            "last_state is not the ledger's": row["last_state"] == (states[-1] if states else None),
            "half a claim": len(in_lease) == 1,
            "a begun item without claim or epoch": not row["is_begun"]
            or row["claimed_by"] is not None
            or row["begun_epoch"] is not None
            or row["scope"] == "stream",
            "begun under an epoch that is gone": row["begun_epoch"] is None
            or (lease is not None and lease["lease_epoch"] == row["begun_epoch"]),
        }
    return [name for name, holds in rules.items() if not holds]


def _facts(row: DictRow) -> tuple[Any, ...]:
    if not row["is_pending"]:
        return (row["status"], row["states"])
    claim = None
    if row["claimed_by"] is not None:
        claim = (row["claimed_by"], row["lease_token"], _units(row["until_claim_ends"]))
    marks = (row["is_begun"], row["begun_epoch"], row["is_claimable"], row["awaits_confirmation"])
    return (row["status"], row["states"], _units(row["until_due"]), marks, claim)


def _predicted(item: Item, now: float) -> tuple[Any, ...]:
    if not item.is_pending:
        return (item.status, item.states)
    claim = None
    if item.claim is not None:
        claim = (item.claim.worker, item.claim.token, _whole(item.claim_expires - now))
    marks = (item.begun, item.begun_epoch, item.claimable, item.awaits_confirmation)
    return (item.status, item.states, _whole(item.due - now), marks, claim)


def _units(seconds: float) -> float:
    """Return whole units. An example runs for much less than a unit."""
    return _whole(seconds / UNIT_SECONDS)


def _whole(units: float) -> float:
    return units if abs(units) == NEVER else round(units)


def _expect_same(found: Mapping[Any, Any], predicted: Mapping[Any, Any]) -> None:
    for key in found.keys() | predicted.keys():
        if found.get(key) != predicted.get(key):
            raise DisagreementError(
                f"{key}: found {found.get(key)}, predicted {predicted.get(key)}"
            )
