"""Leadership: the service that elects, renews and steps down, for one lease of one instance.

    follower ── acquire ──► leader: rebuild, verify again, act ── renew, renew, ... ──┐
        ▲                                                                            │
        └───────── end of the term ◄── lost: at once ── in trouble: when calls ended ─┘

Leadership that the database took away, or that we could not renew while we trusted it, ends at
once: calls are cancelled and their results dropped. Any trouble with the database makes a leader
step down as well, whichever error it was and whether we have a name for it: from that moment it
begins nothing more and does not call itself the leader. Since its lease still stands then, calls
that were made may end and be written under it, as long as it is trusted. After that it is released,
so that a successor need not wait.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leasehold.coordination.term import Term
from leasehold.domain.errors import LeaseLost, NotLeader
from leasehold.domain.lease import TrustWindow
from leasehold.observe.logs import get_logger
from leasehold.service.deadline import within_deadline
from leasehold.service.service import AGAIN, Pause

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from leasehold.coordination.claims import Clock
    from leasehold.domain.lease import Lease
    from leasehold.observe.metrics import Metrics
    from leasehold.store.rows import Acquisition

# Followers ask at moments of their own, so that they do not all come at once.
JITTER = 0.2
# To let go is a courtesy to the successor: nobody waits long for it.
RELEASE_SECONDS = 2.0
# A leader that stepped down lets others come first, for longer and longer while it fails anew:
# whatever failed for us may work for them, and is not to be tried many times a second.
REST_SECONDS = 1.0
# Why a term ends that nobody took from us.
SHUTDOWN = "shutdown"
# A leader that renews several times a second says so less often.
TOLD_SECONDS = 10.0

_LOG = get_logger(__name__)


class Renewed(NamedTuple):
    """What a renewal was granted: its end on the database's clock, and the times it asked for,
    which may be others by now.
    """

    expires_at: datetime
    trust_seconds: float
    start_seconds: float


class LeaseBackend(Protocol):
    """One way to elect. Raises DatabaseUnavailable where it cannot ask."""

    @property
    def trust_seconds(self) -> float:
        """For how long the last acquisition may be trusted, counted from when it was asked for."""
        ...

    @property
    def start_seconds(self) -> float:
        """For how long something new may be begun after it; no longer than it is trusted."""
        ...

    @property
    def renew_seconds(self) -> float:
        """How often a leader renews."""
        ...

    @property
    def acquire_seconds(self) -> float:
        """How often a follower asks."""
        ...

    async def acquire(self) -> Acquisition:
        """Become the leader, or learn who is."""
        ...

    async def renew(self, lease: Lease) -> Renewed:
        """Stay the leader, or raise LeaseLost."""
        ...

    async def release(self, lease: Lease) -> None:
        """Let a successor act at once."""
        ...

    async def close(self) -> None:
        """Give back what only elections need."""
        ...


class TermSession(Protocol):
    """What a leader does during its term."""

    async def finish(self, seconds: float) -> None:
        """Start nothing more; let what was started end and be written, for this long at most."""
        ...

    async def abandon(self) -> None:
        """Drop everything, now."""
        ...


class Elector:
    """One instance's part in the elections of one lease."""

    def __init__(
        self,
        lease_name: str,
        holder_id: str,
        backend: LeaseBackend,
        metrics: Metrics,
        begin_session: Callable[[Elector, Term], TermSession],
        clock: Clock = time.monotonic,
    ) -> None:
        self.name = f"elector {lease_name}"
        self.wake = asyncio.Event()
        self.lease_name = lease_name
        self.holder_id = holder_id
        self.seen: Lease | None = None  # the lease as it was last seen, whoever holds it
        self.seconds_left = 0.0  # of a lease that was another's, when we asked for it
        self._backend = backend
        self._metrics = metrics
        self._begin_session = begin_session
        self._clock = clock
        self._term: Term | None = None
        self._session: TermSession | None = None
        self._renew_at = 0.0
        self._tell_at = 0.0
        self._stand_at = 0.0
        self._failures = 0

    @property
    def term(self) -> Term | None:
        """The term in which this instance leads or steps down, if it does."""
        term = self._term
        return None if term is None or term.is_over(self._clock()) else term

    @property
    def is_leader(self) -> bool:
        """Whether this instance leads, as far as it may believe so, and is not stepping down."""
        term = self.term
        return term is not None and not term.is_closing

    def require_lease(self) -> Lease:
        """Give the lease under which this instance leads now, to act and to write under; raises
        NotLeader where it does not.
        """
        term = self.term
        if term is None or not term.may_start(self._clock()):
            holder_id = self.seen.holder_id if self.seen else None
            leads = f"{holder_id} was last seen to" if holder_id else "who does is not known"
            _LOG.warning("not_leader", holder_now=holder_id, **self._names(self.seen))
            raise NotLeader(
                f"{self.holder_id} does not lead {self.lease_name!r} ({leads}): ask the leader, or "
                "wait until this instance is elected",
                lease_name=self.lease_name,
                holder_id=holder_id,
            )
        return term.lease

    async def step(self) -> Pause:
        """Ask for the lease, or keep it, or end the term."""
        term = self._term
        if term is None:
            rest = self._stand_at - self._clock()
            return Pause(rest) if rest > 0 else await self._stand_for_election()
        if term.is_over(self._clock()):
            await self._lose(term, "trust ended before it was renewed")
            return AGAIN
        if term.is_closing:
            await self._step_down(term)
            return self._rest()
        if self._clock() >= self._renew_at:
            try:
                await self.confirm(term)
            except Exception:  # noqa: BLE001 (told by confirm; the term says what follows)
                return AGAIN
            self._failures = 0
        # Trust must not run out unseen, however far away the next renewal is.
        return Pause(min(self._renew_at - self._clock(), term.seconds_left(self._clock())) + 0.001)

    async def confirm(self, term: Term) -> None:
        """Have the database say that the lease is still ours: renew it. Raises where it does not,
        after the term was closed or ended for it. A term that is closing is not confirmed.
        """
        self._refuse_closing(term)
        asked_at = self._clock()
        try:
            renewed = await within_deadline(
                term.seconds_left(asked_at), self._backend.renew(term.lease), "the renewal"
            )
        except Exception as error:
            self._tell_failure("leader_renew_failed", error, term.lease)
            self.step_down(term, error)
            raise
        finally:
            self.wake.set()
        self._refuse_closing(term)
        term.renewed(
            renewed.expires_at,
            TrustWindow.counted_from(asked_at, renewed.trust_seconds),
            TrustWindow.counted_from(asked_at, renewed.start_seconds),
        )
        self.seen = term.lease
        self._renew_at = asked_at + self._backend.renew_seconds
        if asked_at >= self._tell_at:
            self._tell_at = asked_at + TOLD_SECONDS
            self._tell("leader_renewed", term.lease)

    def step_down(self, term: Term, error: Exception) -> None:
        """Give leadership up for this error; a lease that is lost ends at once."""
        if isinstance(error, LeaseLost):
            term.end("the database says that it is lost")
        else:
            self._close(term, f"{type(error).__name__}: {error}")
        self.wake.set()

    async def resign(self, seconds: float) -> None:
        """End in order: let calls end for this long, then let another lead at once."""
        term = self._term
        if term is not None:
            self._close(term, SHUTDOWN)
            await self._step_down(term, seconds)
        await self._backend.close()

    async def _stand_for_election(self) -> Pause:
        asked_at = self._clock()
        try:
            answer = await self._backend.acquire()
        except Exception as error:
            self._tell_failure("leader_acquire_failed", error, self.seen)
            self._metrics.leader(self.lease_name, is_leader=False)
            raise
        self.seen = answer.lease
        if not answer.is_ours:
            self._metrics.leader(self.lease_name, is_leader=False)
            self.seconds_left = max(0.0, answer.seconds_left)
            return Pause(self._until_next_election(answer.seconds_left))
        term = self._term = Term(
            answer.lease,
            TrustWindow.counted_from(asked_at, self._backend.trust_seconds),
            TrustWindow.counted_from(asked_at, self._backend.start_seconds),
        )
        self._renew_at = asked_at + self._backend.renew_seconds
        self._metrics.leader(self.lease_name, is_leader=True)
        self._metrics.election(self.lease_name)
        self._tell("leader_acquired", answer.lease)
        self._session = self._begin_session(self, term)
        return AGAIN

    def _until_next_election(self, seconds_left: float) -> float:
        """As often as is configured, and right after the lease that we saw would end: it is then
        that somebody is needed. How long that is, the database has said, not our clock.
        """
        usual = self._backend.acquire_seconds
        after_its_end = max(0.0, seconds_left) + JITTER * random.random() * min(usual, 1.0)  # noqa: S311 (spreads, protects nothing)
        return min(self._with_jitter(usual), after_its_end)

    async def _step_down(self, term: Term, seconds: float | None = None) -> None:
        left = term.seconds_left(self._clock())
        if self._session is not None:
            await self._session.finish(left if seconds is None else min(left, seconds))
        await self._lose(term, term.why_closing or "stepped down")
        try:
            await within_deadline(RELEASE_SECONDS, self._backend.release(term.lease), "the release")
        except Exception as error:  # noqa: BLE001 (it expires by itself)
            _LOG.info("leader_release_failed", lease_name=self.lease_name, sql_error=str(error))

    def _refuse_closing(self, term: Term) -> None:
        if term.is_closing:
            raise NotLeader(
                f"{self.holder_id} leads {self.lease_name!r} no more: {term.why_closing}",
                lease_name=self.lease_name,
            )

    def _close(self, term: Term, why: str) -> None:
        """Start nothing more, and say so now: the calls that are under way may take long."""
        if term.is_closing:
            return
        term.close(why)
        self._metrics.leader(self.lease_name, is_leader=False)
        tell = _LOG.info if why == SHUTDOWN else _LOG.warning
        tell("leader_steps_down", why=why, **self._names(term.lease))

    async def _lose(self, term: Term, why: str) -> None:
        term.end(why)
        session, self._session, self._term = self._session, None, None
        self._metrics.leader(self.lease_name, is_leader=False)
        if term.why_closing != SHUTDOWN:
            self._metrics.lease_lost()
        self._tell("leader_lost", term.lease, why=term.why_closing)
        if session is not None:
            await session.abandon()

    def _rest(self) -> Pause:
        longest = self._backend.acquire_seconds
        seconds = self._with_jitter(min(longest, REST_SECONDS * 2 ** min(self._failures, 10)))
        self._failures += 1
        self._stand_at = self._clock() + seconds
        return Pause(seconds)

    def _with_jitter(self, seconds: float) -> float:
        return seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 (spreads, protects nothing)

    def _tell(self, event: str, lease: Lease, **fields: object) -> None:
        _LOG.info(event, **self._names(lease), **fields)

    def _tell_failure(self, event: str, error: Exception, lease: Lease | None) -> None:
        stale = "leadership" if self.is_leader else "who leads, and what is pending"
        _LOG.error(
            event,
            sql_error=f"{type(error).__name__}: {error}",
            role="leader" if self.is_leader else "follower",
            stale=stale,
            **self._names(lease),
        )

    def _names(self, lease: Lease | None) -> dict[str, object]:
        return {
            "holder_id": self.holder_id,
            "lease_name": self.lease_name,
            "lease_epoch": lease.epoch if lease else None,
            "expires_at": lease.expires_at.isoformat() if lease else None,
        }
