"""The metrics of the queue are what the view says, and every worker may read it."""

from __future__ import annotations

from leasehold.observe.metrics import Metrics


def test_view_has_every_column_that_the_metrics_show(outbox):
    outbox.publish("letters", guarantee="blind")
    outbox.enqueue(3, "letters")
    claims = outbox.claim(targets=["letters"], batch_size=1)
    outbox.begin(claims)
    outbox.complete(claims, "IN_DOUBT")
    outbox.count_queue()
    metrics = Metrics("worker-1")
    [row] = outbox.as_role("executor").execute("SELECT * FROM leasehold.supervisor").fetchall()
    metrics.supervisor(row)
    found = {
        name: metrics.registry.get_sample_value(f"leasehold_{name}")
        for name in ("queue_depth", "queue_due", "held", "in_doubt", "expired_leases")
    }
    assert found == {
        "queue_depth": 3,
        "queue_due": 2,
        "held": 1,
        "in_doubt": 0,
        "expired_leases": 0,
    }
    assert metrics.registry.get_sample_value("leasehold_queue_oldest_age_seconds") > 0
    counted_at = metrics.registry.get_sample_value("leasehold_queue_counted_timestamp_seconds")
    assert counted_at == row["seen_at"].timestamp()
