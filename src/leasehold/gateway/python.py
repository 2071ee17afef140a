"""The Python gateway: an async function of the user makes the call.

A contract names it by import path, `shop.gateways:send_sms`, or by the name that
`@gateway_function("sms")` gave it in its module, `shop.gateways:sms`. The function takes a
Submission and returns an outcome; None means Accepted. An exception makes the outcome Unknown,
because Leasehold cannot see how far the function got: raise NotSent if nothing was sent.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from leasehold.domain.outcome import Accepted, NotFound, Rejected, Retryable, Submitted, Unknown
from leasehold.gateway.errors import GatewayMisconfigured, NotSent
from leasehold.gateway.sanitize import CODE_MAX, Sanitizer
from leasehold.observe.logs import get_logger, hide_in_logs
from leasehold.observe.redact import environment_secrets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from leasehold.domain.contract import Contract
    from leasehold.domain.gateway_terms import PythonTerms
    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.gateway.protocol import Submission

SubmitFunction: TypeAlias = "Callable[[Submission], Awaitable[Outcome | None]]"
LookupFunction: TypeAlias = "Callable[[Submission], Awaitable[LookupAnswer]]"
_AnyFunction: TypeAlias = "Callable[[Submission], Awaitable[object]]"
_Function = TypeVar("_Function", bound="SubmitFunction | LookupFunction")

# Tuples, not unions: isinstance() would build a union anew for each call.
_OUTCOMES = (Accepted, Rejected, Retryable, Unknown, Submitted)
_ANSWERS = (Accepted, Rejected, Submitted, NotFound, Unknown)

_LOG = get_logger(__name__)
_named: dict[str, Callable[..., Any]] = {}


def gateway_function(name: str) -> Callable[[_Function], _Function]:
    """Register an async function as `<module>:<name>`, the path that a contract can use.

    >>> @gateway_function("sms")
    ... async def send_over_the_usual_provider(submission: Submission) -> None: ...
    """

    def register(function: _Function) -> _Function:
        path = f"{function.__module__}:{name}"
        _require_async(function, path)
        if _named.setdefault(path, function) is not function and not _is_reload(path, function):
            raise GatewayMisconfigured(f"two functions are named {path}: rename one of them")
        _named[path] = function
        return function

    return register


class _CallTimedOut(Exception):
    """The function did not return within the contract's call timeout."""


class _SharedTimeout:
    """A timeout block like asyncio.timeout, with one timer for all calls of a gateway.

    All calls have the same timeout, so they time out in the order in which they began: a dict in
    that order and one timer are enough. An asyncio.timeout for each call costs 2.3 µs more, a
    fifteenth of what a worker spends on an item.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadlines: dict[asyncio.Task[Any] | None, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Remembered: a gateway serves one event loop, and asking for it is a system call.
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        deadline = self._deadlines[asyncio.current_task(loop)] = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._cancel_late)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        task = asyncio.current_task(self._loop)
        was_late = self._deadlines.pop(task, None) is None
        is_cancelled = was_late and isinstance(error, asyncio.CancelledError)
        if is_cancelled and task is not None and task.uncancel() == 0:
            raise _CallTimedOut(f"the function did not return in {self.seconds:g} s") from error

    def _cancel_late(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._deadlines:
            task, deadline = next(iter(self._deadlines.items()))
            if deadline > loop.time():
                self._timer = loop.call_at(deadline, self._cancel_late)
                return
            del self._deadlines[task]
            if task is not None:
                task.cancel()


class PythonGateway:
    """Calls the functions that a contract names, within its call timeout."""

    def __init__(
        self,
        contract: Contract,
        terms: PythonTerms,
        *,
        environment: Mapping[str, str],
        secrets: Collection[str] = (),
    ) -> None:
        """Raise GatewayMisconfigured if a function cannot be imported or is not async."""
        known = [*secrets, *environment_secrets(environment)]
        self._sanitizer = Sanitizer(known)
        hide_in_logs(known)
        self._timeout = _SharedTimeout(contract.call_timeout_seconds)
        # Whatever their annotations say, they may return anything.
        self._submit: _AnyFunction = self._find(terms.function)
        self._lookup: _AnyFunction | None = self._find(terms.lookup) if terms.lookup else None

    async def submit(self, submission: Submission) -> Outcome:
        """Call the function and return its outcome."""
        try:
            with self._timeout:
                outcome = await self._submit(submission)
        except NotSent as error:
            return Retryable(
                retry_after_seconds=error.retry_after_seconds,
                is_saturated=error.is_saturated,
                reason=self._sanitizer.line(str(error.reason), CODE_MAX),
            )
        except Exception as error:  # noqa: BLE001 (a user's function may raise anything)
            return self._unknown(submission, error)
        if outcome is None:
            return Accepted()
        if isinstance(outcome, _OUTCOMES):
            return self._sanitizer.answer(outcome, submission)
        return _not_an_outcome(submission, outcome)

    async def lookup(self, submission: Submission) -> LookupAnswer:
        """Call the lookup function, if the contract names one."""
        if self._lookup is None:
            return Unknown(reason="no_lookup", detail="the contract names no lookup function")
        try:
            with self._timeout:
                answer = await self._lookup(submission)
        except Exception as error:  # noqa: BLE001 (a user's function may raise anything)
            return self._unknown(submission, error)
        if isinstance(answer, _ANSWERS):
            return self._sanitizer.answer(answer, submission)
        return _not_an_outcome(submission, answer)

    async def close(self) -> None:
        """Do nothing: the function's module owns what it opened."""

    def _find(self, path: str) -> Callable[..., Any]:
        module_name, _, name = path.partition(":")
        try:
            module: object = importlib.import_module(module_name)
        except Exception as error:  # noqa: BLE001 (a user's module may raise anything)
            # Not chained, because the error may contain a secret.
            raise GatewayMisconfigured(
                f"{path}: the module {module_name} cannot be imported:"
                f" {self._sanitizer.error(error)}"
            ) from None
        found = _named.get(path)
        if found is None:
            found = _find_attribute(module, name, path)
            _require_async(found, path)
        return found

    def _unknown(self, submission: Submission, error: Exception) -> Unknown:
        is_late = isinstance(error, _CallTimedOut)
        reason = "timeout" if is_late else "exception"
        _LOG.warning(
            "outcome_unknown",
            reason=reason,
            error=self._sanitizer.error_for_log(error, submission),
            exception=None if is_late else self._sanitizer.traceback_for_log(error, submission),
            **submission.log_fields,
        )
        return Unknown(
            reason=reason, detail=str(error) if is_late else self._sanitizer.error(error)
        )


def _find_attribute(module: object, name: str, path: str) -> Callable[..., Any]:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise GatewayMisconfigured(
            f"{path}: the module has no function and no @gateway_function named {name!r}"
        )
    return cast("Callable[..., Any]", found)


def _require_async(function: Callable[..., Any], path: str) -> None:
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )
    if not is_async:
        raise GatewayMisconfigured(
            f"{path} must be an async function: a plain one would block all other calls"
        )


def _is_reload(path: str, function: Callable[..., Any]) -> bool:
    """Distinguish importlib.reload from a second function of the same name."""
    return getattr(_named[path], "__qualname__", None) == getattr(function, "__qualname__", None)


def _not_an_outcome(submission: Submission, returned: object) -> Unknown:
    kind = type(returned).__name__
    _LOG.error("outcome_invalid", returned=kind, **submission.log_fields)
    return Unknown(reason="no_outcome", detail=f"the function returned a {kind}, not an outcome")
