"""The elector: acquires, renews and releases one lease for one instance.

    follower ── acquire ──► leader: rebuild, confirm, act ── renew, renew, ... ──┐
        ▲                                                                       │
        └──── end of the term ◄── lease lost: at once ── stepped down: calls end ┘

If the database reports the lease as lost, or if trust runs out before a renewal, the term ends at
once: calls are cancelled and their results are dropped. Any other database error makes the leader
step down: from then on it begins no new calls and no longer reports itself as the leader. Its lease
is still valid, so calls that have begun may finish and be recorded while the term is trusted. Then
the lease is released, so that a successor need not wait for its expiry.

A lease backend grants the lease. There are two: the lease row (`row_lease.py`) and the session
advisory lock (`advisory_lock.py`). Both raise the epoch of the same row and both respect it, so a
group may change from one to the other while it runs.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leasehold.coordination.term import Term
from leasehold.domain.errors import LeaseholdError, LeaseLost, NotLeader
from leasehold.domain.lease import TrustWindow, trust_clock
from leasehold.observe.logs import get_logger
from leasehold.service.backoff import Backoff
from leasehold.service.deadline import within_deadline
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from leasehold.domain.lease import Clock, Lease
    from leasehold.observe.metrics import Metrics
    from leasehold.store.rows import Acquisition

# Followers ask at slightly different times, so that they do not all ask at once.
JITTER = 0.2
# The release only helps the successor, so it gets no more time.
RELEASE_SECONDS = 2.0
# After stepping down, an instance lets others be elected first. The pause doubles while it fails:
# what fails here may work elsewhere, and must not be tried many times a second.
REST_SECONDS = 1.0
# The closing reason of a term that ends without an error.
SHUTDOWN = "shutdown"
# The closing reason of a term that no renewal has extended in time.
TRUST_ENDED = "trust ended before a renewal"
# The backends renew up to several times a second; `leader_renewed` is logged no more often.
RENEWED_LOG_SECONDS = 10.0

_LOG = get_logger(__name__)


class Renewed(NamedTuple):
    """A granted renewal: its expiry on the database's clock, and the durations it asked for.

    The settings may have changed since it was sent, so the durations come with the answer.
    """

    expires_at: datetime
    trust_seconds: float
    start_seconds: float


class LeaseBackend(Protocol):
    """Grants one lease. Each method raises DatabaseUnavailable if it cannot ask the database."""

    @property
    def trust_seconds(self) -> float:
        """How long the last acquisition may be trusted, counted from before it was sent."""
        ...

    @property
    def start_seconds(self) -> float:
        """How long new calls may begin after it; at most `trust_seconds`."""
        ...

    @property
    def renewal_seconds(self) -> float:
        """How long the next renewal may be trusted, counted from before it is sent."""
        ...

    @property
    def renew_seconds(self) -> float:
        """How often the leader renews."""
        ...

    @property
    def acquire_seconds(self) -> float:
        """How often a follower asks."""
        ...

    async def acquire(self) -> Acquisition:
        """Acquire the lease, or learn who holds it."""
        ...

    async def renew(self, lease: Lease, trust_seconds: float) -> Renewed:
        """Let the lease last this long from now on, or raise LeaseLost."""
        ...

    async def release(self, lease: Lease) -> None:
        """End the lease now, so that a successor can acquire it at once."""
        ...

    async def close(self) -> None:
        """Close the resources of the backend."""
        ...


class TermSession(Protocol):
    """The work of a leader during one term."""

    async def finish(self, seconds: float) -> None:
        """Begin nothing new; let calls finish and be recorded, for at most this long."""
        ...

    async def abandon(self) -> None:
        """Stop everything now: cancel calls and drop their results."""
        ...


class Elector:
    """The service that takes part in the elections of one lease."""

    def __init__(
        self,
        lease_name: str,
        holder_id: str,
        backend: LeaseBackend,
        metrics: Metrics,
        begin_session: Callable[[Elector, Term], TermSession],
        clock: Clock = trust_clock,
    ) -> None:
        self.name = f"elector {lease_name}"
        self.wake = asyncio.Event()
        self.lease_name = lease_name
        self.holder_id = holder_id
        self.seen: Lease | None = None  # the lease in the database's last answer, whoever holds it
        self.seconds_left = 0.0  # of another holder's lease, in the last answer to `acquire`
        self._backend = backend
        self._metrics = metrics
        self._begin_session = begin_session
        self._clock = clock
        self._term: Term | None = None
        self._session: TermSession | None = None
        self._renew_at = 0.0
        self._log_renewed_at = 0.0
        self._rest_until = 0.0
        self._backoff = Backoff(REST_SECONDS, REST_SECONDS, jitter=(1 - JITTER, 1 + JITTER))

    @property
    def term(self) -> Term | None:
        """The term in which this instance leads or is stepping down."""
        term = self._term
        return None if term is None or term.is_over(self._clock()) else term

    @property
    def is_leader(self) -> bool:
        """Whether this instance trusts its lease and is not stepping down."""
        term = self.term
        return term is not None and not term.is_closing

    def require_lease(self) -> Lease:
        """Return the lease under which this instance leads now, or raise NotLeader."""
        term = self.term
        if term is None or not term.may_start(self._clock()):
            holder_id = self.seen.holder_id if self.seen else None
            _LOG.warning("leader_call_refused", leader_id=holder_id, **self._fields(self.seen))
            raise NotLeader(
                f"{self.holder_id} does not lead {self.lease_name!r}; last known leader: "
                f"{holder_id or 'none'}. Ask the leader, or wait until this instance is elected",
                lease_name=self.lease_name,
                holder_id=holder_id,
            )
        return term.lease

    async def step(self) -> Pause:
        """Acquire the lease, renew it, or end the term."""
        term = self._term
        if term is None:
            rest = self._rest_until - self._clock()
            return Pause(rest) if rest > 0 else await self._acquire()
        if term.is_over(self._clock()):
            await self._end(term, TRUST_ENDED)
            return AGAIN
        if term.is_closing:
            await self._finish(term)
            return self._rest()
        if self._clock() >= self._renew_at:
            try:
                await self.confirm(term)
            except Exception:  # noqa: BLE001 (confirm has logged it and closed or ended the term)
                return AGAIN
            self._backoff.reset()
        # The end of trust must be noticed, however far away the next renewal is.
        return Pause(min(self._renew_at - self._clock(), term.seconds_left(self._clock())) + 0.001)

    async def confirm(self, term: Term) -> None:
        """Renew the lease, to make sure that it is still ours; a closing term is not renewed.

        If that fails, the term is closed or ended and the error is raised.
        """
        self._refuse_closing(term)
        sent_at = self._clock()
        trust_seconds = self._backend.renewal_seconds
        # The renewal may shorten the lease, and its answer may be lost.
        term.shorten(TrustWindow.counted_from(sent_at, trust_seconds))
        renewal = self._backend.renew(term.lease, trust_seconds)
        try:
            renewed = await within_deadline(term.seconds_left(sent_at), renewal, "the renewal")
        except Exception as error:
            self._log_failure("leader_renew_failed", error, term.lease)
            self.step_down(term, error)
            raise
        finally:
            self.wake.set()
        self._refuse_closing(term)
        if not term.extend(
            self._clock(),
            renewed.expires_at,
            TrustWindow.counted_from(sent_at, renewed.trust_seconds),
            TrustWindow.counted_from(sent_at, renewed.start_seconds),
        ):
            late = LeaseLost("the answer to the renewal is late", lease_name=self.lease_name)
            self._log_failure("leader_renew_failed", late, term.lease)
            self.step_down(term, late)
            raise late
        self.seen = term.lease
        self._renew_at = sent_at + self._backend.renew_seconds
        if sent_at >= self._log_renewed_at:
            self._log_renewed_at = sent_at + RENEWED_LOG_SECONDS
            _LOG.info("leader_renewed", **self._fields(term.lease))

    def step_down(self, term: Term, error: Exception) -> None:
        """Give up the lease because of an error. A lost lease ends the term at once."""
        if isinstance(error, LeaseLost):
            is_over = term.is_over(self._clock())
            term.end(TRUST_ENDED if is_over else "the database reports it as lost", error)
        else:
            self._close(term, f"{type(error).__name__}: {error}", error)
        self.wake.set()

    async def resign(self, seconds: float) -> None:
        """End the term in order: let calls finish for this long, then release the lease."""
        term = self._term
        if term is not None:
            self._close(term, SHUTDOWN)
            await self._finish(term, seconds)
        await self._backend.close()

    async def _acquire(self) -> Pause:
        sent_at = self._clock()
        try:
            answer = await self._backend.acquire()
        except Exception as error:
            self._log_failure("leader_acquire_failed", error, self.seen)
            self._metrics.leader(self.lease_name, is_leader=False)
            raise
        self.seen = answer.lease
        if not answer.is_ours:
            self._metrics.leader(self.lease_name, is_leader=False)
            self.seconds_left = max(0.0, answer.seconds_left)
            return Pause(self._until_next_acquire(self.seconds_left))
        term = self._term = Term(
            answer.lease,
            TrustWindow.counted_from(sent_at, self._backend.trust_seconds),
            TrustWindow.counted_from(sent_at, self._backend.start_seconds),
        )
        self._renew_at = sent_at + self._backend.renew_seconds
        self._metrics.leader(self.lease_name, is_leader=True)
        self._metrics.election(self.lease_name)
        _LOG.info("leader_acquired", **self._fields(answer.lease))
        self._session = self._begin_session(self, term)
        return AGAIN

    def _until_next_acquire(self, seconds_left: float) -> float:
        """The configured interval, or less if the lease that we saw ends earlier.

        The database computed `seconds_left`; our own clock may be wrong.
        """
        interval = self._backend.acquire_seconds
        spread = JITTER * random.random() * min(interval, 1.0)  # noqa: S311 (not used for security)
        jitter = random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 (as above)
        return min(interval * jitter, seconds_left + spread)

    async def _finish(self, term: Term, seconds: float | None = None) -> None:
        left = term.seconds_left(self._clock())
        if self._session is not None:
            await self._session.finish(left if seconds is None else min(left, seconds))
        await self._end(term, term.closing_reason or "stepped down")
        try:
            await within_deadline(RELEASE_SECONDS, self._backend.release(term.lease), "the release")
        except Exception as error:  # noqa: BLE001 (the lease expires by itself)
            _LOG.info("leader_release_failed", lease_name=self.lease_name, sql_error=str(error))

    def _refuse_closing(self, term: Term) -> None:
        if term.is_closing:
            raise NotLeader(
                f"{self.holder_id} no longer leads {self.lease_name!r}: {term.closing_reason}",
                lease_name=self.lease_name,
            )

    def _close(self, term: Term, reason: str, error: Exception | None = None) -> None:
        """Begin no new calls, and report it now: running calls may take long."""
        if term.is_closing:
            return
        term.close(reason, error)
        self._metrics.leader(self.lease_name, is_leader=False)
        log = _LOG.info if reason == SHUTDOWN else _LOG.warning
        # Our own errors explain themselves; anything else is a defect and needs the traceback.
        defect = None if isinstance(error, LeaseholdError) else error
        log("leader_stepped_down", why=reason, exc_info=defect, **self._fields(term.lease))

    async def _end(self, term: Term, reason: str) -> None:
        term.end(reason)
        session, self._session, self._term = self._session, None, None
        self._metrics.leader(self.lease_name, is_leader=False)
        if term.closing_reason != SHUTDOWN:
            self._metrics.lease_lost()
        failure = {"sql_error": term.sql_error} if term.sql_error else {}
        _LOG.info("leader_lost", why=term.closing_reason, **failure, **self._fields(term.lease))
        if session is not None:
            await session.abandon()

    def _rest(self) -> Pause:
        seconds = self._backoff.next_seconds(self._backend.acquire_seconds)
        self._rest_until = self._clock() + seconds
        return Pause(seconds)

    def _log_failure(self, event: str, error: Exception, lease: Lease | None) -> None:
        is_leader = self.is_leader
        _LOG.error(
            event,
            sql_error=f"{type(error).__name__}: {error}",
            role="leader" if is_leader else "follower",
            stale="whether we lead" if is_leader else "who leads, and which work is pending",
            **self._fields(lease),
        )

    def _fields(self, lease: Lease | None) -> dict[str, object]:
        return {
            "holder_id": self.holder_id,
            "lease_name": self.lease_name,
            "lease_epoch": lease.epoch if lease else None,
            "expires_at": lease.expires_at.isoformat() if lease else None,
        }
