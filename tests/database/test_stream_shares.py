"""Fair shares: every stream has one holder, and the shares of a target differ by at most one."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.lease_holder import GRACE_SECONDS, LEASE_SECONDS

# Streams per target; all targets are distributed at the same time.
TARGETS = {"t1": 1, "t2": 2, "t7": 7, "t23": 23, "t50": 50}
ROUNDS_MAX = 12


@pytest.fixture
def streams(outbox):
    entries = []
    for target, count in TARGETS.items():
        outbox.publish(target, scope="stream")
        entries += [{"target": target, "payload": 1, "stream": f"s{n}"} for n in range(count)]
    outbox.enqueue_entries(entries)
    return outbox


class Instance:
    """An instance. In each round it reports, renews, releases surplus streams and claims."""

    def __init__(self, outbox, name, targets=tuple(TARGETS)):
        self.outbox = outbox
        self.name = name
        self.targets = list(targets)
        self.held: dict[str, int] = {}

    def report(self):
        self.call("renew_instance", self.name, "worker", self.targets, {}, 60)

    def round(self) -> int:
        """Run one round, and return how many streams changed their holder."""
        self.report()
        for row in self.call("renew_streams", self.name, *self.leases(), *self.timing()):
            if row["verdict"] == "lease_lost":
                del self.held[row["lease_name"]]
        surplus = self.call("surplus_streams", self.name, self.targets)
        for row in surplus:
            assert self.held.pop(row["lease_name"]) == row["lease_epoch"]
        given = ([row["lease_name"] for row in surplus], [row["lease_epoch"] for row in surplus])
        released = self.call("release_streams", self.name, *given)
        assert {row["verdict"] for row in released} <= {"released"}
        claimed = self.call("claim_streams", self.name, self.targets, *self.timing(), 1000)
        self.held |= {row["lease_name"]: row["lease_epoch"] for row in claimed}
        return len(surplus) + len(claimed)

    def leases(self):
        return list(self.held), list(self.held.values())

    def timing(self):
        return LEASE_SECONDS, GRACE_SECONDS

    def call(self, function, *arguments):
        return self.outbox.call("executor", function, *arguments)


def settle(instances):
    for instance in instances:
        instance.report()
    for _ in range(ROUNDS_MAX):
        if not sum([instance.round() for instance in instances]):
            return
    raise AssertionError("the streams still change hands")


def assert_balanced(database, instances):
    """Check that each stream has one holder, and that shares differ by at most one per target."""
    rows = database.execute("SELECT lease_name, holder_id, lease_epoch FROM leasehold.leases")
    held = {row["lease_name"]: (row["holder_id"], row["lease_epoch"]) for row in rows}
    believed = [(name, (one.name, epoch)) for one in instances for name, epoch in one.held.items()]
    assert len(believed) == sum(TARGETS.values())
    assert dict(believed) == held
    for target, count in TARGETS.items():
        shares = Counter({instance.name: 0 for instance in instances})
        shares.update(held[f"stream/{target}/s{n}"][0] for n in range(count))
        assert max(shares.values()) - min(shares.values()) <= 1, (target, shares)
        assert len(shares) == len(instances)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_no_instance_has_less_than_its_share_of_any_target(streams, database, count):
    instances: list[Instance] = []
    for number in range(count):
        # Each starts when the others already hold all streams.
        instances.append(Instance(streams, f"instance-{number}"))
        settle(instances)
    assert_balanced(database, instances)


def test_instances_that_start_together_balance_too(streams, database):
    instances = [Instance(streams, f"instance-{number}") for number in range(3)]
    settle(instances)
    assert_balanced(database, instances)


@pytest.mark.parametrize("end", ["dies", "says goodbye"])
def test_share_of_a_dead_instance_goes_to_the_others(streams, database, end):
    gone, *others = instances = [Instance(streams, f"instance-{number}") for number in range(3)]
    settle(instances)
    if end == "dies":
        database.owner_execute(
            "UPDATE leasehold.instances SET alive_until = clock_timestamp() - interval '1 second'"
            " WHERE instance_id = %s",
            [gone.name],
        )
        # Its leases remain until they expire: nobody can tell whether it is dead or slow.
        settle(others)
        assert sum(len(one.held) for one in others) < sum(TARGETS.values())
        for lease_name in gone.held:
            streams.expire_lease(lease_name, grace=False)
    else:
        gone.call("release_streams", gone.name, *gone.leases())
        assert gone.call("release_instance", gone.name) == [{"release_instance": True}]
    settle(others)
    assert_balanced(database, others)


def test_instance_that_serves_one_target_takes_no_share_of_another(streams):
    narrow = Instance(streams, "narrow", ["t2"])
    wide = Instance(streams, "wide")
    settle([narrow, wide])
    assert len(narrow.held) == 1
    assert len(wide.held) == sum(TARGETS.values()) - 1


def test_stream_with_a_call_in_flight_is_never_surplus(streams, database):
    first = Instance(streams, "instance-0")
    settle([first])
    rows = database.execute("SELECT intent_id, lease_name FROM leasehold.outbox_pending")
    for row in rows:
        fence = (row["lease_name"], first.name, first.held[row["lease_name"]])
        first.call("begin_leased_attempts", *fence, [row["intent_id"]])
    second = Instance(streams, "instance-1")
    settle([first, second])
    assert len(first.held) == sum(TARGETS.values())
    assert second.held == {}


@pytest.mark.parametrize("never_held", [True, False])
def test_neglected_stream_is_claimed_beyond_the_share(streams, database, never_held):
    """The other instance is alive but claims nothing; the stream must not wait for it."""
    idle = Instance(streams, "idle")
    if not never_held:
        settle([idle])
        idle.call("release_streams", idle.name, *idle.leases())
    idle.report()
    busy = Instance(streams, "busy")
    settle([busy])
    assert len(busy.held) < sum(TARGETS.values())
    for target, count in TARGETS.items():
        held = [name for name in busy.held if name.startswith(f"stream/{target}/")]
        assert len(held) in (count // 2, count - count // 2)

    long_ago = f"clock_timestamp() - interval '{LEASE_SECONDS + 1} seconds'"
    database.owner_execute(f"UPDATE leasehold.outbox_pending SET due_at = {long_ago}")
    database.owner_execute(
        f"UPDATE leasehold.leases SET expires_at = {long_ago}, grace_expires_at = {long_ago}"
        " WHERE holder_id = 'idle'"
    )
    busy.round()
    assert len(busy.held) == sum(TARGETS.values())


def test_stream_whose_head_is_not_due_is_not_neglected(streams, database):
    Instance(streams, "idle").report()
    busy = Instance(streams, "busy")
    database.owner_execute("UPDATE leasehold.outbox_pending SET due_at = 'infinity'")
    busy.round()
    assert len(busy.held) < sum(TARGETS.values())
