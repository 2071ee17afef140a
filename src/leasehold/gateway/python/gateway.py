"""The Python gateway: a function of the user makes the call. An async function runs in the event
loop, a plain one in a thread.

A contract names it by import path, `shop.gateways:send_sms`, or by the name that
`@gateway_function("sms")` gave it in its module, `shop.gateways:sms`. The function takes a
Submission and returns an outcome; None means Accepted. An exception makes the outcome Unknown,
because Leasehold cannot see how far the function got: raise NotSent if nothing was sent. That holds
for SystemExit and KeyboardInterrupt too, because no intent may end the processes that submit it.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from leasehold.domain.outcome import (
    Accepted,
    Deferred,
    NotFound,
    Rejected,
    Retryable,
    Submitted,
    Unknown,
)
from leasehold.gateway.errors import GatewayMisconfigured, NotSent, TrustEnded
from leasehold.gateway.sanitize import CODE_MAX
from leasehold.observe.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import CodeType, FrameType

    from leasehold.domain.contract import Contract
    from leasehold.domain.outcome import LookupAnswer, Outcome
    from leasehold.gateway.protocol import Submission
    from leasehold.gateway.python.terms import PythonTerms
    from leasehold.gateway.registry import Surroundings

SubmitFunction: TypeAlias = "Callable[[Submission], Awaitable[Outcome | None] | Outcome | None]"
LookupFunction: TypeAlias = "Callable[[Submission], Awaitable[LookupAnswer] | LookupAnswer]"
_AnyFunction: TypeAlias = "Callable[[Submission], Awaitable[object]]"
_Function = TypeVar("_Function", bound="SubmitFunction | LookupFunction")

# Tuples, not unions: isinstance() would build a union anew for each call.
_OUTCOMES = (Accepted, Rejected, Retryable, Unknown, Submitted, Deferred)
_ANSWERS = (Accepted, Rejected, Submitted, NotFound, Unknown)
# What a user's code may raise. Signals do not raise here: our processes handle them in the loop.
_RAISED = (Exception, SystemExit, KeyboardInterrupt)

# Each thread has a slot, so the most slots of an instance are enough threads for all of them.
_THREADS_MAX = 5000

_LOG = get_logger(__name__)
_named: dict[str, Callable[..., Any]] = {}
_paths: dict[CodeType, str] = {}  # of the functions that are in use


def gateway_function(name: str) -> Callable[[_Function], _Function]:
    """Register a function as `<module>:<name>`, the path that a contract can use.

    >>> @gateway_function("sms")
    ... async def send_over_the_usual_provider(submission: Submission) -> None: ...
    """

    def register(function: _Function) -> _Function:
        path = f"{function.__module__}:{name}"
        if _named.setdefault(path, function) is not function and not _is_reload(path, function):
            raise GatewayMisconfigured(f"two functions are named {path}: rename one of them")
        _named[path] = function
        return function

    return register


def function_of(frame: FrameType | None) -> str | None:
    """Return the path of the gateway function that a frame belongs to or was called by."""
    while frame is not None:
        if frame.f_code in _paths:
            return _paths[frame.f_code]
        frame = frame.f_back
    return None


class Threads:
    """The threads of plain functions. Each call has one, so the slots of the instance bound them.

    Nobody can cancel a thread: if its call is given up, `keep_slot` keeps the slot until it ends.
    """

    def __init__(self, keep_slot: Callable[[asyncio.Future[Any]], None] | None = None) -> None:
        self._keep_slot = keep_slot
        self._executor = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="leasehold-call")

    async def call(self, function: Callable[..., object], submission: Submission) -> object:
        """Call a function in a thread, with the context of the caller."""
        call = partial(contextvars.copy_context().run, partial(_call, function, submission))
        running = asyncio.get_running_loop().run_in_executor(self._executor, call)
        try:
            returned = await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(_ignore_result)
            if self._keep_slot is not None:
                self._keep_slot(running)
            raise
        # A decorator can hide that a function is async.
        return await returned if inspect.isawaitable(returned) else returned

    def close(self) -> None:
        """Start no more calls. Threads that are idle end."""
        self._executor.shutdown(wait=False)


def _call(function: Callable[..., object], submission: Submission) -> object:
    try:
        return function(submission)
    except StopIteration as error:  # as in a coroutine: no future can carry it
        raise RuntimeError("the function raised StopIteration") from error


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

    def __init__(self, contract: Contract, terms: PythonTerms, surroundings: Surroundings) -> None:
        """Raise GatewayMisconfigured if a function cannot be imported."""
        self._threads = surroundings.threads or Threads()
        self._sanitizer = surroundings.sanitizer
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
            if not submission.may_send():
                raise TrustEnded("the lease was not trusted any more") from error
            return Retryable(
                retry_after_seconds=error.retry_after_seconds,
                is_saturated=error.is_saturated,
                reason=self._sanitizer.line(str(error.reason), CODE_MAX),
            )
        except _RAISED as error:
            return self._unknown(submission, error)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
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
        except _RAISED as error:
            return self._unknown(submission, error)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            return self._unknown(submission, error)
        if isinstance(answer, _ANSWERS):
            return self._sanitizer.answer(answer, submission)
        return _not_an_outcome(submission, answer)

    async def close(self) -> None:
        """Do nothing: the function's module owns what it opened."""

    def _find(self, path: str) -> _AnyFunction:
        function = self._import(path)
        if (code := _code_of(function)) is not None:
            _paths[code] = path
        if _is_async(function):
            return function

        async def call_in_thread(submission: Submission) -> object:
            return await self._threads.call(function, submission)

        return call_in_thread

    def _import(self, path: str) -> Callable[..., Any]:
        module_name, _, name = path.partition(":")
        try:
            module: object = importlib.import_module(module_name)
        except _RAISED as error:
            # Not chained, because the error may contain a secret.
            advice = "; is it in --app-dir?" if isinstance(error, ModuleNotFoundError) else ""
            raise GatewayMisconfigured(
                f"{path}: the module {module_name} cannot be imported:"
                f" {self._sanitizer.error(error)}{advice}"
            ) from None
        return _named.get(path) or _find_attribute(module, name, path)

    def _unknown(self, submission: Submission, error: BaseException) -> Unknown:
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


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


def _code_of(function: Callable[..., Any]) -> CodeType | None:
    """Return the code that runs when a function or a callable object is called, if it is Python."""
    own = inspect.unwrap(function)
    called = own if hasattr(own, "__code__") else type(own).__call__
    return getattr(called, "__code__", None)


def _is_cancelled() -> bool:
    """Whether we cancel the call. A function can also raise CancelledError by itself."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _ignore_result(call: asyncio.Future[object]) -> None:
    """Take the late error of a thread, so that asyncio does not log it."""
    if not call.cancelled():
        call.exception()


def _is_reload(path: str, function: Callable[..., Any]) -> bool:
    """Distinguish importlib.reload from a second function of the same name."""
    return getattr(_named[path], "__qualname__", None) == getattr(function, "__qualname__", None)


def _not_an_outcome(submission: Submission, returned: object) -> Unknown:
    kind = type(returned).__name__
    _LOG.error("outcome_invalid", returned=kind, **submission.log_fields)
    return Unknown(reason="no_outcome", detail=f"the function returned a {kind}, not an outcome")
