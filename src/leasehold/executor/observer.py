"""An observer is a user's own code that is told what this instance does with its intents.

These are hints: told at most once, in this process only, and lost with it. The durable source is
the ledger and its event stream.

Runner and completer put what they have to tell into a bounded queue, and a thread calls the
observer. So an observer that is slow, blocks or raises costs the executor nothing: what does not
fit into the queue is dropped and counted.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
import time
import traceback
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.intent import AttemptState
from leasehold.domain.outcome import Submitted, Unknown
from leasehold.domain.retry import LookUpAgain, Submit
from leasehold.executor.item import RECORDING
from leasehold.gateway.sanitize import Sanitizer
from leasehold.observe.logs import get_logger
from leasehold.observe.redact import environment_secrets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from uuid import UUID

    from leasehold.domain.intent import IntentId
    from leasehold.domain.outcome import Outcome
    from leasehold.domain.retry import Step
    from leasehold.executor.item import Item
    from leasehold.observe.metrics import Metrics

# How many events may wait for the observer.
QUEUE_MAX = 10_000
# Failures and drops may come by the thousand: each kind is logged at most this often.
LOG_SECONDS = 1.0
_METHODS = ("begun", "answered", "unknown", "terminal")

_LOG = get_logger(__name__)


class ObservedIntent(NamedTuple):
    """What an observer is told about an intent. `attempt_no` is the number of the attempt."""

    intent_id: IntentId
    target: str
    stream: str | None
    attempt_no: int
    submission_key: UUID
    worker_id: str
    trace_id: str


class Observer(Protocol):
    """What a user's code can be told. Derive from it to override only some of the methods.

    One thread calls all methods, in the order of the events. They may block.
    """

    def begun(self, intent: ObservedIntent, /) -> None:
        """Know that the gateway is about to be called. Its begin mark, if any, is durable."""

    def answered(self, intent: ObservedIntent, outcome: Outcome, /) -> None:
        """Know what the gateway answered to a call, or to a lookup if it has news."""

    def unknown(self, intent: ObservedIntent, outcome: Unknown, /) -> None:
        """Know that the outcome of a call is unknown."""

    def terminal(self, intent: ObservedIntent, state: AttemptState, reason: str | None, /) -> None:
        """Know that this instance has committed the terminal ledger row of an intent."""


class ObserverThread:
    """Tells one observer, in a thread of its own."""

    def __init__(self, observer: Observer, metrics: Metrics, worker_id: str) -> None:
        self._observer = observer
        self._metrics = metrics
        self._worker_id = worker_id
        # The event loop alone writes, so its size is exact enough to bound it.
        self._queue: SimpleQueue[tuple[str, tuple[object, ...]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="leasehold-observer", daemon=True)
        self._drops = _Reports("observations_dropped", worker_id)
        self._failures = _Reports("observer_failed", worker_id)

    def start(self) -> None:
        """Call the observer from now on."""
        self._thread.start()

    def begun(self, items: Iterable[Item], step: Step) -> None:
        """Tell that a call is about to be made for items."""
        if not isinstance(step, Submit):
            return
        for one in items:
            if not one.is_observed:  # else the call had to wait for a late renewal
                one.is_observed = True
                self._tell("begun", _observed(one))

    def ended(self, item: Item, decided: Outcome | LookUpAgain) -> None:
        """Tell how a call or a lookup ended, unless it was given up before or brought no news."""
        has_asked = item.is_observed or item.lookup_contract is not None
        if not has_asked or item.state >= RECORDING or isinstance(decided, LookUpAgain):
            return
        if isinstance(decided, Unknown):
            self._tell("unknown", _observed(item), decided)
        elif not (
            isinstance(decided, Submitted) and item.claimed.last_state is AttemptState.SUBMITTED
        ):
            self._tell("answered", _observed(item), decided)

    def terminal(self, item: Item, state: AttemptState, reason: str | None) -> None:
        """Tell that a terminal row is committed."""
        self._tell("terminal", _observed(item), state, reason)

    async def close(self, seconds: float) -> None:
        """Tell what is left, for at most this long."""
        self._queue.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, seconds)
        left = self._queue.qsize() - 1  # without the end itself
        if left > 0:
            self._drop(left)

    def _tell(self, method: str, *arguments: object) -> None:
        if self._queue.qsize() < QUEUE_MAX:
            self._queue.put((method, arguments))
        else:
            self._drop(1)

    def _drop(self, count: int) -> None:
        self._metrics.observations_dropped(count)
        self._drops.add(count, advice="the observer is slower than the executor")

    def _run(self) -> None:
        while (told := self._queue.get()) is not None:
            method, arguments = told
            try:
                getattr(self._observer, method)(*arguments)
            except BaseException as error:  # noqa: BLE001 (a user's code may raise anything)
                self._metrics.observer_failed()
                # Without the message, which may contain anything.
                self._failures.add(
                    1,
                    method=method,
                    error=type(error).__name__,
                    traceback="".join(traceback.format_tb(error.__traceback__)),
                )


class _Reports:
    """Logs one kind of event at most once per LOG_SECONDS, with their number since the last."""

    def __init__(self, event: str, worker_id: str) -> None:
        self._event = event
        self._worker_id = worker_id
        self._count = 0
        self._logged_at = float("-inf")

    def add(self, count: int, **fields: object) -> None:
        self._count += count
        if time.monotonic() - self._logged_at >= LOG_SECONDS:
            _LOG.warning(self._event, worker_id=self._worker_id, count=self._count, **fields)
            self._count, self._logged_at = 0, time.monotonic()


def find_observer(
    observer: Observer | None,
    path: str | None,
    secrets: Collection[str],
    environment: Mapping[str, str],
) -> Observer | None:
    """Return the observer that is given, or else the one that a path names, if any.

    `secrets` and those of the environment must not get into errors. Raises InvalidArgument,
    which says what to change.
    """
    if observer is not None:
        return _require_methods(observer, type(observer).__name__)
    if path is None:
        return None
    return _load(path, Sanitizer([*secrets, *environment_secrets(environment)]))


def _load(path: str, sanitizer: Sanitizer) -> Observer:
    """Import `package.module:object`. A class is called without arguments."""
    module_name, _, name = path.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
        observer = found() if inspect.isclass(found) else found
    except (Exception, SystemExit) as error:  # noqa: BLE001 (a user's module may raise anything)
        # Not chained, because the error may contain a secret.
        advice = "; is it in --app-dir?" if isinstance(error, ModuleNotFoundError) else ""
        raise InvalidArgument(
            f"the observer {path} cannot be loaded: {sanitizer.error(error)}{advice}"
        ) from None
    return _require_methods(observer, path)


def _require_methods(observer: object, name: str) -> Observer:
    """Refuse an object that lacks a method of an observer, or whose methods are coroutines."""
    methods = {one: getattr(observer, one, None) for one in _METHODS}
    missing = [one for one, method in methods.items() if not callable(method)]
    if missing:
        raise InvalidArgument(
            f"the observer {name} has no {' and no '.join(missing)}:"
            " derive its class from leasehold.Observer"
        )
    if any(inspect.iscoroutinefunction(method) for method in methods.values()):
        raise InvalidArgument(
            f"the observer {name} has async methods: a thread calls it, so make them plain ones"
        )
    return cast("Observer", observer)


def _observed(item: Item) -> ObservedIntent:
    claimed = item.claimed
    return ObservedIntent(
        claimed.intent_id,
        claimed.target,
        claimed.stream,
        claimed.attempt_no,
        claimed.submission_key,
        item.fence.holder_id,
        item.trace_id,
    )
