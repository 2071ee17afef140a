"""The defaults that the source documents give; each test names its document."""

from __future__ import annotations

import re
import socket
from datetime import UTC, datetime

import pytest

from leasehold.config import read_settings
from leasehold.coordination.elector import Elector
from leasehold.domain.contract import ATTEMPTS_CEILING
from leasehold.domain.lease import Lease
from leasehold.gateway.registry import Contract
from leasehold.observe.metrics import Metrics
from leasehold.runtime.registration import new_worker_id
from leasehold.store.rows import Acquisition

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OTHERS = Lease(name="a", holder_id="b", epoch=1, expires_at=NOON, grace_expires_at=NOON)
GATEWAYS = {
    "http": {"kind": "http", "url": "https://sms.example/send"},
    "python": {"kind": "python", "function": "somewhere:send"},
}


@pytest.fixture
def settings(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return read_settings()


def test_leader_has_the_defaults_of_document_000(settings):
    assert settings.cluster_lease_seconds == 60
    assert settings.cluster_renew_seconds == 20
    assert settings.cluster_acquire_seconds == 30
    assert settings.schedule_refresh_seconds == 1


def test_holder_is_named_by_host_process_and_chance_as_in_document_000(settings):
    assert settings.holder_id is None
    assert re.fullmatch(rf"{re.escape(socket.gethostname())}-\d+-[0-9a-f]+", new_worker_id())


def test_attempts_have_the_ceiling_of_document_001():
    assert ATTEMPTS_CEILING == 20


def test_streams_expire_after_30_seconds_and_3_minutes_as_in_document_002(settings):
    assert settings.stream_claim_seconds == 30
    assert settings.stream_claim_seconds + settings.stream_grace_seconds == 3 * 60


@pytest.mark.parametrize(("kind", "lease_seconds"), [("python", 30), ("http", 60)])
def test_items_have_the_lease_of_document_004(kind, lease_seconds):
    contract = Contract.model_validate(
        {"target": "sms", "scope": "item", "guarantee": "keyed", "gateway": GATEWAYS[kind]}
    )
    assert contract.lease_seconds == lease_seconds


def test_worker_has_the_defaults_of_document_004(settings):
    assert settings.concurrency == 10
    assert settings.reaper_seconds == 10
    assert settings.heartbeat_seconds < 30 / 3
    assert settings.shutdown_seconds <= 30
    assert settings.timings().item_lease_seconds == 30


class OthersLease:
    """The lease backend of a follower: somebody else holds the lease for so long."""

    acquire_seconds = 30.0

    def __init__(self, seconds_left):
        self.answer = Acquisition(is_ours=False, lease=OTHERS, seconds_left=seconds_left)

    async def acquire(self):
        return self.answer


async def pauses_of_followers(seconds_left):
    elector = Elector("a", "us", OthersLease(seconds_left), Metrics("us"), begin_session=None)
    return [(await elector.step()).seconds for _ in range(200)]


async def test_followers_ask_about_every_30_seconds_but_not_all_at_once():
    """Documents 000 (acquire_interval) and 003 ("every few seconds with jitter")."""
    pauses = await pauses_of_followers(1000)
    assert 24 <= min(pauses) < 27
    assert 33 < max(pauses) <= 36


async def test_followers_do_not_all_ask_at_once_when_they_see_the_lease_end():
    """Document 000: another instance acquires the lease after it has expired."""
    pauses = await pauses_of_followers(5)
    assert min(pauses) >= 5
    assert max(pauses) <= 5.2
    assert len(set(pauses)) > 100
