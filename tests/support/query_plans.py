"""Captures the query plans of a call, including the statements inside the functions.

auto_explain sends the plan of every nested statement as a notice to the session that ran it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg
    from psycopg.rows import DictRow

    from tests.support.database import Database

    Node = dict[str, Any]

LARGE = ("outbox_pending", "intents", "outbox_attempts")
_SETTINGS = {
    "log_min_duration": "0",
    "log_nested_statements": "on",
    "log_analyze": "on",
    "log_timing": "off",
    "log_buffers": "on",
    "log_format": "json",
    "log_level": "notice",
}
_FINDS_ROWS = ("Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Tid Scan")
# The index of a partition is named after the partition, not after its parent index.
_PARTITION = re.compile(r"^outbox_attempts_(\d{4}_\d\d|default)")
_INDEX_OF_LEDGER = {
    "_pkey": "outbox_attempts_pkey",
    "_intent_id_idx": "outbox_attempts_one_terminal_per_intent",
    "_finished_at_idx": "outbox_attempts_finished",
    "_transaction_id_intent_id_attempt_no_idx": "outbox_attempts_events",
}


class Explainer:
    """A superuser session that captures plans; it rolls back whatever it runs."""

    def __init__(self, database: Database):
        self.connection: psycopg.Connection[DictRow] = database.connect()
        self._notices: list[str] = []
        self.connection.execute("LOAD 'auto_explain'")
        for name, value in _SETTINGS.items():
            self.connection.execute(f"SET auto_explain.{name} = {value}")
        self.connection.add_notice_handler(self._on_notice)

    def run(
        self,
        statement: str,
        params: Sequence[Any] = (),
        *,
        times: int = 1,
        before: Sequence[str] = (),
    ) -> Plans:
        """Run a call in a transaction and roll it back; return the plans of the last run."""
        for _ in range(times):
            with self.connection.transaction(force_rollback=True):
                for preparation in before:
                    self.connection.execute(preparation)
                self._notices.clear()
                rows = self.connection.execute(statement, params).fetchall()
        plans = [json.loads(notice[notice.index("{") :]) for notice in self._notices]
        return Plans(rows, plans)

    def _on_notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        message = diagnostic.message_primary or ""
        if message.startswith("duration:"):
            self._notices.append(message)


class Plans:
    """The plans of one call, innermost first, and the rows it returned."""

    def __init__(self, rows: list[DictRow], plans: list[Node]):
        self.rows = rows
        self.plans = plans

    @property
    def nodes(self) -> Iterator[Node]:
        for plan in self.plans:
            yield from _walk(plan["Plan"])

    @property
    def buffers(self) -> int:
        """Count the pages touched; the outermost statement includes the inner ones."""
        outermost = self.plans[-1]["Plan"]
        return outermost["Shared Hit Blocks"] + outermost["Shared Read Blocks"]

    def indexes(self, table: str) -> set[str]:
        """Return the indexes that were used to find rows of a table."""
        names = {
            _index_name(node["Index Name"])
            for node in self.nodes
            if "Index Name" in node and node["Actual Loops"] > 0
        }
        return {name for name in names if name.startswith(table)}

    def assert_bounded(self, *, rows_max: int, buffers_max: int) -> None:
        """Assert that large tables are read by index or tid, within these rows and pages."""
        for node in self.nodes:
            assert_is_bounded(node, rows_max)
        assert self.buffers <= buffers_max, f"{self.buffers} pages, at most {buffers_max} expected"


def assert_is_bounded(node: Node, rows_max: int) -> None:
    """Assert the bound for one node; nodes that never ran (other partitions) do not count."""
    relation = node.get("Relation Name", "") if node["Actual Loops"] else ""
    if relation.startswith(LARGE) and node["Node Type"] not in ("ModifyTable", "LockRows"):
        assert node["Node Type"] in _FINDS_ROWS, f"{node['Node Type']} of {relation}"
    removed = sum(
        node.get(name, 0) for name in ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    )
    touched = (node["Actual Rows"] + removed) * node["Actual Loops"]
    if relation.startswith(LARGE) or "Sort" in node["Node Type"]:
        where = f"{node['Node Type']} {node.get('Index Name', relation)}"
        assert touched <= rows_max, f"{where}: {touched} rows, {removed} of them filtered out"


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", []):
        yield from _walk(child)


def _index_name(name: str) -> str:
    partition = _PARTITION.match(name)
    if partition is None:
        return name
    return _INDEX_OF_LEDGER.get(name[partition.end() :], name)
