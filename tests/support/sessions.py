"""Database sessions that a test steps through an interleaving, without sleeps.

first, second = database.session(), database.session()
first.run("BEGIN")
first.run("SELECT ... FOR UPDATE")
waiting = second.start("UPDATE ...")
waiting.assert_blocked()
first.run("COMMIT")
assert waiting.result() == []
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg
    from psycopg.rows import DictRow

    Params = Sequence[Any] | Mapping[str, Any] | None

DEADLINE_SECONDS = 10.0
_POLL_SECONDS = 0.005
_WAITS_FOR_LOCK = """
SELECT wait_event_type = 'Lock' AND cardinality(pg_blocking_pids(pid)) > 0 AS blocked
  FROM pg_stat_activity WHERE pid = %s
"""


class Session:
    """One database session; its statements run one at a time in its own thread."""

    def __init__(
        self,
        connection: psycopg.Connection[DictRow],
        *,
        observer: psycopg.Connection[DictRow],
    ):
        self.connection = connection
        self.pid = connection.info.backend_pid
        self.observer = observer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"session-{self.pid}")
        self._last: Future[list[DictRow]] | None = None

    def run(self, statement: str, params: Params = None) -> list[DictRow]:
        """Run a statement that should not block; return its rows."""
        return self.start(statement, params).result()

    def start(self, statement: str, params: Params = None) -> Pending:
        """Start a statement in the background, where it may run or block."""
        assert self._last is None or self._last.done(), "the session is busy with a statement"
        self._last = self._thread.submit(self._execute, statement, params)
        return Pending(self, statement, self._last)

    def close(self) -> None:
        if self._last is not None and not self._last.done():
            self.connection.cancel_safe(timeout=DEADLINE_SECONDS)
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.connection.close()

    def _execute(self, statement: str, params: Params) -> list[DictRow]:
        cursor = self.connection.execute(statement, params)
        return [] if cursor.description is None else cursor.fetchall()


class Pending:
    """A statement that was started."""

    def __init__(self, session: Session, statement: str, future: Future[list[DictRow]]):
        self._session = session
        self._statement = statement
        self._future = future

    def assert_blocked(self, timeout: float = DEADLINE_SECONDS) -> None:
        """Return once the statement waits for another session's lock; fail if it ends."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._future.done():
                raise AssertionError(f"{self._statement!r} did not wait: {self._outcome()}")
            if self._is_blocked():
                return
            time.sleep(_POLL_SECONDS)
        raise AssertionError(f"{self._statement!r} neither ended nor waited for a lock")

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout: float = DEADLINE_SECONDS) -> list[DictRow]:
        """Return the rows, or raise the database's error."""
        try:
            return self._future.result(timeout)
        except TimeoutError:
            state = "waits for a lock" if self._is_blocked() else "runs"
            raise AssertionError(f"{self._statement!r} still {state} after {timeout} s") from None

    def _is_blocked(self) -> bool:
        found = self._session.observer.execute(_WAITS_FOR_LOCK, [self._session.pid]).fetchone()
        return bool(found and found["blocked"])

    def _outcome(self) -> object:
        return self._future.exception() or self._future.result()
