"""A kind of gateway that one package brings, and one call registers, works like ours."""

from __future__ import annotations

import os

import pytest

from tests.support.cli_process import run_fork

MODULE = "tests.support.courier"
SEAL = "griffin-with-seven-feathers"


@pytest.fixture
def apply(database, tmp_path):
    def run(gateway, guarantee="keyed"):
        file = tmp_path / "leasehold.toml"
        terms = f'[targets.letters]\nscope = "item"\nguarantee = "{guarantee}"\n'
        file.write_text(f"{terms}gateway = {{ {gateway} }}\n")
        environment = {**os.environ, "LEASEHOLD_DATABASE_URL": database.url_as("operator")}
        arguments = ["targets", "apply", "--file", file]
        return run_fork(arguments, environment, module=MODULE)

    return run


async def test_own_kind_is_published_and_submits_without_showing_its_secret(
    apply, engine, tmp_path
):
    letters = tmp_path / "letters"
    letters.mkdir()
    applied = apply(f'kind = "courier", folder = "{letters}", seal_env = "TEST_SEAL"')
    assert applied.stdout == "letters: version 1 (new)\n", applied.stderr
    worker = engine.worker(module=MODULE, test_seal=SEAL)
    sent = engine.outbox.enqueue(target="letters", payload="dear")
    refused = engine.outbox.enqueue(target="letters", payload="refuse")
    await engine.until_status(sent, "accepted")
    await engine.until_status(refused, "rejected")
    assert [one.read_text() for one in letters.iterdir()] == [SEAL]
    [attempt] = engine.outbox.ledger(refused[0])
    assert attempt["detail"] == "***"
    assert worker.lines("letter_sealed")
    assert SEAL not in worker.log.read_text()


def test_own_kind_refuses_what_it_cannot_promise_and_settings_that_it_lacks(apply):
    refused = apply('kind = "courier", folder = "f", seal_env = "S"', "fenced")
    assert "letters: guarantee fenced is not for kind courier" in refused.stderr
    refused = apply('kind = "courier", folder = "f", seal_env = "S"', "lookup")
    assert "guarantee lookup needs a gateway with a lookup: use another kind" in refused.stderr
    refused = apply('kind = "courier", folder = "f", seal = "S"')
    assert "letters.gateway.seal_env: is required" in refused.stderr
    assert "letters.gateway.seal: is not a setting; did you mean seal_env?" in refused.stderr
    refused = apply('kind = "pigeon"')
    assert "kind: must be one of 'courier', 'http', 'ledger', 'python'" in refused.stderr
