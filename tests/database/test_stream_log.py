"""What an instance logs of its streams: failures, pauses, takeovers."""

from __future__ import annotations

import pytest

from leasehold.domain.outcome import Rejected
from leasehold.executor.log_budget import LINES_PER_SECOND, LogBudget
from leasehold.observe.logs import get_logger
from tests.database.test_ordered_steps import BatchGateway, Instance
from tests.support.lease_holder import claim_streams

pytestmark = pytest.mark.one_server
_LOG = get_logger(__name__)


class RejectingGateway(BatchGateway):
    """Takes nothing."""

    async def submit_many(self, submissions):
        return [Rejected(code="422") for _ in submissions]


def lines(caplog, event):
    found = [vars(one).get("leasehold_fields", {}) for one in caplog.records]
    return [fields for fields in found if fields.get("event") == event]


async def test_failed_intent_and_the_stream_that_it_pauses_are_logged(outbox, stores, caplog):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    failed, _ = outbox.enqueue(2, "pay", stream="s")
    await Instance(stores.executor, RejectingGateway()).work()
    [line] = lines(caplog, "intent_failed")
    assert (line["intent_id"], line["attempt_no"], line["worker_id"]) == (str(failed), 1, "a")
    assert (line["target"], line["reason"], line["code"]) == ("pay", None, "422")
    assert "trace_id" in line
    [line] = lines(caplog, "stream_paused")
    assert (line["target"], line["stream"], line["seconds"]) == ("pay", "s", None)
    [shown] = await stores.readonly.read_blocked_streams(None, None, 2)
    assert (shown.paused_for, shown.reason) == (failed, "422")


async def test_flood_of_failures_is_logged_up_to_a_bound(outbox, stores, caplog):
    outbox.publish("pay", scope="stream", guarantee="lookup", on_failure="continue")
    outbox.enqueue(5, "pay", stream="s")
    instance = Instance(stores.executor, RejectingGateway())
    now = 0.0
    budget = LogBudget(_LOG, "intent_failed", lines_max=3, clock=lambda: now)
    instance.completer._reports._failures = budget
    await instance.work()
    assert len(lines(caplog, "intent_failed")) == 3
    now += 1 / LINES_PER_SECOND
    outbox.enqueue(1, "pay", stream="s")
    await instance.work()
    assert lines(caplog, "intent_failed")[-1]["not_logged"] == 2
    assert lines(caplog, "stream_paused") == []


async def test_takeover_of_streams_is_logged_once_and_counted(outbox, stores, caplog, database):
    outbox.publish("pay", scope="stream", guarantee="lookup")
    for number in range(3):
        outbox.enqueue(1, "pay", stream=f"s{number}")
    assert len(claim_streams(outbox, "dead")) == 3
    outbox.enqueue(1, "pay", stream="free")
    database.owner_execute(
        "UPDATE leasehold.leases SET expires_at = clock_timestamp(),"
        "  grace_expires_at = clock_timestamp() WHERE holder_id = 'dead'"
    )
    instance = Instance(stores.executor, BatchGateway())
    await instance.work()
    [line] = lines(caplog, "streams_taken_over")
    assert (line["worker_id"], line["streams"], line["targets"]) == ("a", 3, ["pay"])
    outbox.enqueue(1, "pay", stream="s0")
    await instance.work()
    assert len(lines(caplog, "streams_taken_over")) == 1
    labels = {"worker_id": "", "target": "pay"}
    taken = instance.metrics.registry.get_sample_value("leasehold_streams_taken_over_total", labels)
    assert taken == 3
