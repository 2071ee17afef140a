"""The Python gateway: an async function of yours performs the call.

It is named by import path, `shop.gateways:send_sms`, or by the name that `@gateway_function("sms")`
gave it in its module, `shop.gateways:sms`. It takes a Submission and returns an outcome; None means
Accepted. An exception leaves the outcome Unknown, since we cannot see how far the function came:
raise NotSent where nothing was sent.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import structlog

from leasehold.domain.outcome import Accepted, NotFound, Rejected, Retryable, Submitted, Unknown
from leasehold.gateway.errors import GatewayMisconfigured, NotSent
from leasehold.gateway.ledger_text import CODE_MAX, DETAIL_MAX, clean

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasehold.domain.contract import Contract
    from leasehold.domain.gateway_terms import PythonTerms
    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.gateway.protocol import Submission

SubmitFunction: TypeAlias = "Callable[[Submission], Awaitable[Outcome | None]]"
LookupFunction: TypeAlias = "Callable[[Submission], Awaitable[LookupAnswer]]"
_AnyFunction: TypeAlias = "Callable[[Submission], Awaitable[object]]"
_Function = TypeVar("_Function", bound="SubmitFunction | LookupFunction")

# Written as a union where they are looked for, they would be put together anew for each call.
_OUTCOMES = (Accepted, Rejected, Retryable, Unknown, Submitted)
_ANSWERS = (Accepted, Rejected, Submitted, NotFound, Unknown)

_log = structlog.get_logger(__name__)
_named: dict[str, Callable[..., Any]] = {}


def gateway_function(name: str) -> Callable[[_Function], _Function]:
    """Name an async function so that a contract can say `<module>:<name>`, whatever it is called.

    >>> @gateway_function("sms")
    ... async def send_over_the_usual_provider(submission: Submission) -> None: ...
    """

    def register(function: _Function) -> _Function:
        path = f"{function.__module__}:{name}"
        _require_async(function, path)
        if _named.setdefault(path, function) is not function and not _is_reload(path, function):
            raise GatewayMisconfigured(f"two functions are named {path}: give one another name")
        _named[path] = function
        return function

    return register


class _OutOfTime(Exception):
    """The function did not end within the contract's time."""


class _Calls:
    """Stands over each call of a gateway, and cancels it when its time is over: as asyncio.timeout
    does it, but all calls have the same time, so that one timer is enough for them, and a call pays
    next to nothing. Raises _OutOfTime where a call was late. Of one event loop, as its gateway is:
    asking for the one that runs is a call of the operating system.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends: dict[asyncio.Task[Any] | None, float] = {}  # in their order
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        ends_at = self._ends[asyncio.current_task(loop)] = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(ends_at, self._cancel_late)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        task = asyncio.current_task(self._loop)
        was_late = self._ends.pop(task, None) is None
        is_cancelled = was_late and isinstance(error, asyncio.CancelledError)
        if is_cancelled and task is not None and task.uncancel() == 0:
            raise _OutOfTime(f"after {self.seconds:g} s") from error

    def _cancel_late(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._ends:
            task, ends_at = next(iter(self._ends.items()))
            if ends_at > loop.time():
                self._timer = loop.call_at(ends_at, self._cancel_late)
                return
            del self._ends[task]
            if task is not None:
                task.cancel()


class PythonGateway:
    """Calls the functions that a contract names, within its time."""

    def __init__(self, contract: Contract, terms: PythonTerms) -> None:
        """Raise GatewayMisconfigured where a function cannot be imported or is not async."""
        self._calls = _Calls(contract.call_timeout_seconds)
        # Whatever their annotations say, they may give anything.
        self._submit: _AnyFunction = _find(terms.function)
        self._lookup: _AnyFunction | None = _find(terms.lookup) if terms.lookup else None

    async def submit(self, submission: Submission) -> Outcome:
        """Call the function. A caller that cancels must take the outcome for Unknown."""
        try:
            with self._calls:
                outcome = await self._submit(submission)
        except NotSent as error:
            return Retryable(
                retry_after_seconds=error.retry_after_seconds,
                is_saturated=error.is_saturated,
                reason=clean(error.reason, CODE_MAX),
            )
        except Exception as error:  # noqa: BLE001 (a user's function may raise anything)
            return _unknown(submission, error)
        if outcome is None:
            return Accepted()
        if isinstance(outcome, _OUTCOMES):
            return outcome
        return _no_outcome(submission, outcome)

    async def lookup(self, submission: Submission) -> LookupAnswer:
        """Call the lookup function, where there is one."""
        if self._lookup is None:
            return Unknown(reason="no_lookup", detail="the contract names no lookup function")
        try:
            with self._calls:
                answer = await self._lookup(submission)
        except Exception as error:  # noqa: BLE001 (a user's function may raise anything)
            return _unknown(submission, error)
        if isinstance(answer, _ANSWERS):
            return answer
        return _no_outcome(submission, answer)

    async def close(self) -> None:
        """Nothing to close: the function's module owns what it opened."""


def _find(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    try:
        module: object = importlib.import_module(module_name)
    except Exception as error:
        raise GatewayMisconfigured(
            f"{path}: the module {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = _named.get(path)
    if found is None:
        found = _attribute(module, name, path)
        _require_async(found, path)
    return found


def _attribute(module: object, name: str, path: str) -> Callable[..., Any]:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise GatewayMisconfigured(f"{path}: the module has no function and no gateway {name!r}")
    return cast("Callable[..., Any]", found)


def _require_async(function: Callable[..., Any], path: str) -> None:
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )
    if not is_async:
        raise GatewayMisconfigured(f"{path} must be an async function: it would block all others")


def _is_reload(path: str, function: Callable[..., Any]) -> bool:
    """Tell importlib.reload from a second function of the same name."""
    return getattr(_named[path], "__qualname__", None) == getattr(function, "__qualname__", None)


def _no_outcome(submission: Submission, returned: object) -> Unknown:
    kind = type(returned).__name__
    _log.error("gateway.returned_no_outcome", returned=kind, intent_id=str(submission.intent_id))
    return Unknown(reason="no_outcome", detail=f"the function returned a {kind}, not an outcome")


def _unknown(submission: Submission, error: Exception) -> Unknown:
    is_late = isinstance(error, _OutOfTime)
    _log.warning(
        "gateway.outcome_unknown",
        intent_id=str(submission.intent_id),
        attempt_no=submission.attempt_no,
        target=submission.target,
        reason="timeout" if is_late else "exception",
        exc_info=None if is_late else error,
    )
    return Unknown(
        reason="timeout" if is_late else "exception",
        detail=clean(f"{type(error).__name__}: {error}", DETAIL_MAX),
    )
