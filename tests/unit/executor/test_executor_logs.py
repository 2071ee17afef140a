"""Every log line of the runner and the completer names the attempt that it is about."""

from __future__ import annotations

import ast
import inspect
import logging

import pytest

from leasehold.executor import result_reports, runner
from leasehold.executor.item import claimed_items
from leasehold.observe.logs import get_logger
from tests.support.claimed_item import claim_of

NAMES = {"intent_id", "attempt_no", "worker_id", "trace_id"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Fence:
    holder_id = "worker-1"


def item_of(claimed):
    [item] = claimed_items([claimed], Fence(), None, 30.0, 0.0)
    return item


def log_calls(module):
    """Return the calls of a module's logger."""
    return [
        node
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "_LOG"
        and node.func.attr != "isEnabledFor"
    ]


@pytest.mark.parametrize("module", [runner, result_reports], ids=lambda module: module.__name__)
def test_every_line_carries_the_fields_of_its_item(module):
    calls = log_calls(module)
    assert calls
    for call in calls:
        unpacked = [ast.unparse(one.value) for one in call.keywords if one.arg is None]
        assert "item.log_fields()" in unpacked, f"line {call.lineno}: {ast.unparse(call)}"


def test_fields_of_an_item_name_its_attempt():
    fields = item_of(claim_of(7)._replace(attempt_no=3, trace_context=TRACE)).log_fields()
    assert fields.keys() >= NAMES
    assert fields["intent_id"] == "00000000-0000-0000-0000-000000000007"
    assert (fields["attempt_no"], fields["worker_id"]) == (3, "worker-1")
    assert fields["trace_id"] == "0af7651916cd43dd8448eb211c80319c"


def test_lines_about_an_item_without_a_trace_have_the_same_trace_id():
    item = item_of(claim_of(7))
    assert len({item.log_fields()["trace_id"] for _ in range(3)}) == 1


def test_fields_reach_the_log_line(caplog):
    with caplog.at_level(logging.WARNING):
        get_logger("leasehold.test").warning("call_skipped", **item_of(claim_of(7)).log_fields())
    [line] = caplog.messages
    assert all(f"{name}=" in line for name in NAMES)
