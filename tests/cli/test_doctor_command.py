"""`leasehold doctor`: one line per check, and an exit code."""

from __future__ import annotations

import json

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from leasehold.store.postgres.database_url import unverified_hosts
from tests.support.cli_process import forked_leasehold as leasehold
from tests.support.engine import Engine
from tests.support.pooler import SESSIONS


def checks(result):
    return {one["name"]: one for one in json.loads(result.stdout)}


async def test_healthy_database_fails_only_the_check_that_a_test_server_fails(
    database, outbox, tmp_path
):
    engine = Engine(database, outbox, None, tmp_path)
    worker = engine.worker()
    await worker.logged("reaper_elected")
    result = leasehold("doctor", "--json", url=database.url_as("executor"))
    engine.close()
    found = checks(result)
    assert {name for name, one in found.items() if one["level"] == "fail"} == {"durability"}
    assert (result.returncode, found["durability"]["found"]) == (1, "fsync is off")
    assert found["roles"]["found"] == "leasehold_executor"
    assert found["schema"]["level"] == found["encoding"]["level"] == "ok"
    assert found["tls"] == {"name": "tls", "level": "ok", "found": found["tls"]["found"]} | {
        "advice": None
    }
    assert found["instances"]["found"].startswith("1 alive, one of them reaps")


def test_each_line_has_a_level_and_says_what_to_do(database):
    result = leasehold("doctor", url=database.url)
    assert "warn  instances   none submits intents: start `leasehold worker`" in result.stdout
    assert {line.split()[0] for line in result.stdout.splitlines()} <= {"ok", "warn", "fail"}


def test_database_that_does_not_answer_fails_the_only_check():
    result = leasehold("doctor", "--json", url="postgresql://a:secret@127.0.0.1:1/b")
    assert result.returncode == 1
    assert list(checks(result)) == ["connection"]
    assert "secret" not in result.stdout + result.stderr


def test_missing_schema_and_login_without_a_role_fail(server):
    server.execute("CREATE DATABASE {} ", "empty_for_doctor")
    try:
        result = leasehold("doctor", "--json", url=server.url_of("empty_for_doctor"))
        found = checks(result)
        assert (result.returncode, found["schema"]["level"]) == (1, "fail")
        assert found["schema"]["advice"].startswith("run `leasehold migrate`")
        assert found["instances"]["level"] == "warn"
    finally:
        server.drop_database("empty_for_doctor")


def test_it_looks_as_the_role_of_the_settings(database, server):
    """A login that does not inherit has no rights without it."""
    server.execute("CREATE ROLE {} LOGIN NOINHERIT PASSWORD 'doctor'", "doctors_login")
    try:
        server.execute("GRANT leasehold_executor TO {}", "doctors_login")
        url = make_conninfo(database.url, user="doctors_login", password="doctor")
        alone = checks(leasehold("doctor", "--json", url=url))["roles"]
        assert alone["level"] == "fail"
        assert "LEASEHOLD_DATABASE_ROLE=leasehold_executor" in alone["advice"]

        role = {"database_role": "leasehold_executor"}
        found = checks(leasehold("doctor", "--json", url=url, **role))
        assert (found["roles"]["level"], found["schema"]["level"]) == ("ok", "ok")

        refused = leasehold("doctor", "--json", url=url, database_role="leasehold_ingest")
        assert refused.returncode == 1
        assert "GRANT leasehold_ingest" in checks(refused)["roles"]["advice"]
    finally:
        server.execute("DROP ROLE {}", "doctors_login")


@pytest.mark.program("pgbouncer")
def test_its_limits_do_not_leak_to_other_clients_of_a_pooler(pooler):
    leasehold("doctor", url=pooler.url)
    with psycopg.connect(pooler.url, prepare_threshold=None) as other:
        for _ in range(SESSIONS * 2):
            assert other.execute("SHOW statement_timeout").fetchone() == ("0",)
            assert other.execute("SHOW lock_timeout").fetchone() == ("0",)
            other.commit()


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://a@db.example/b", ["db.example"]),
        ("postgresql://a@db.example/b?sslmode=verify-ca", ["db.example"]),
        ("postgresql://a@db.example/b?sslmode=verify-full", []),
        ("postgresql://a@db.example/b?sslrootcert=system", []),
        ("postgresql://a@127.0.0.1/b", []),
        ("postgresql://a@[::1]/b", []),
        ("host=/run/postgresql dbname=b", []),
        ("host=localhost,10.0.0.1 dbname=b", ["10.0.0.1"]),
    ],
)
def test_server_on_another_machine_must_be_verified(url, hosts):
    assert unverified_hosts(url) == hosts


def test_worker_says_at_start_that_nobody_checks_who_answers():
    address = "postgresql://a@192.0.2.1/b"  # of no machine
    result = leasehold("worker", url=address, start_seconds="0", connect_seconds="2")
    said = result.stdout + result.stderr
    assert result.returncode == 1
    assert "database_unverified" in said
    assert "192.0.2.1" in said
    assert "LEASEHOLD_DATABASE_TLS=verify-full" in said
