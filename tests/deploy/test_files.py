"""The files in deploy/ use only metrics, labels, settings, options and commands that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo

from leasehold.cli.main import load_command
from leasehold.client.errors import NOTHING_WRITTEN
from leasehold.config import Settings
from leasehold.domain.timing import Timings
from leasehold.observe.metrics import Metrics
from leasehold.store.postgres.migrate import migrate
from leasehold.store.postgres.role_stores import PostgresRoleStores
from leasehold.web.problems import KINDS
from leasehold.web.request_context import HEAD_BYTES_MAX
from leasehold.web.schemas.requests import WAIT_SECONDS_MAX
from leasehold.web.server import HEADERS_MAX
from leasehold.web.service import WebMetrics
from tests.support.metric_labels import label_names
from tests.support.required_programs import find_program
from tests.support.servers import available_binaries

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
HAPROXY = (DEPLOY / "haproxy.cfg").read_text()
UNIT = (DEPLOY / "leasehold@.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()

EXPRESSIONS = [rule["expr"] for rule in RULES] + [
    target["expr"] for panel in PANELS for target in panel.get("targets", [])
]
# Metrics of others: postgres_exporter, and prometheus-client for every process.
OTHERS = {
    "pg_stat_activity_max_tx_duration": {"datname", "state"},
    "process_resident_memory_bytes": set(),
    "process_open_fds": set(),
}
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
METRIC = re.compile(r"\b((?:leasehold|pg|process)_\w+)(?:\{([^}]*)\})?")
LABELS = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
BY = re.compile(r"\bby \(([^)]*)\)")
COMMAND = re.compile(r"^CMD (\[.*\])$", re.MULTILINE)
HAPROXY_ERRORS = re.findall(r"^\s+http-error status (\d+) .* string '(.*)'", HAPROXY, re.MULTILINE)
# What HAProxy reserves of a buffer for headers that it adds (tune.maxrewrite).
HAPROXY_REWRITES = 1024
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


def exposed():
    """Every metric that an instance exposes, with its labels."""
    metrics = Metrics("worker-1")
    WebMetrics(metrics.registry, "worker-1")
    found = {}
    for metric in metrics.registry.collect():
        if metric.name.startswith("leasehold_"):
            labels = label_names(metrics.registry, metric.name)
            for suffix in SUFFIXES[metric.type]:
                more = {"le"} if suffix == "_bucket" else set()
                found[metric.name + suffix] = labels | more
    return found


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()
    return int(number) * UNITS[unit]


def haproxy_time(name):
    return seconds(re.search(rf"^\s+timeout {name} (\S+)$", HAPROXY, re.MULTILINE)[1])


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_uses_only_metrics_and_labels_that_are_exposed(expression):
    known = exposed() | OTHERS
    used = METRIC.findall(expression)
    assert used, "the expression has no metric"
    for name, selector in used:
        assert name in known
        assert set(LABELS.findall(selector)) <= known[name]
    for group in BY.findall(expression):
        labels = {label.strip() for label in group.split(",")}
        assert all(labels <= known[name] for name, _ in used)


def test_unknown_metric_would_be_found():
    assert "leasehold_http_requests_total" in exposed()
    for wrong in ("leasehold_queue_length", "leasehold_http_requests"):
        assert wrong not in exposed()


def test_alerts_cover_every_critical_metric():
    told = " ".join(EXPRESSIONS[: len(RULES)])
    for name in (
        *("queue_oldest_age_seconds", "reaper_runs_total", "in_doubt_oldest_age_seconds", "held"),
        *("elections_total", "lease_lost_total", "terminal_guard_hit_total"),
        "worker_deaths_total",
        *("oldest_xmin_age_transactions", "target_not_served"),
        *("contract_refused_total", "stale_tokens_refused_total", "deferred_oldest_age_seconds"),
        "generation_changes_total",
    ):
        assert f"leasehold_{name}" in told
    assert "pg_stat_activity_max_tx_duration" in told


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_has_a_severity_and_says_what_to_do(rule):
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert len(rule["annotations"]["summary"]) > 20
    assert len(rule["annotations"]["description"]) > 20
    assert seconds(rule.get("for", "0s")) >= 0
    assert len({one["alert"] for one in RULES}) == len(RULES)


def test_dashboard_panels_do_not_overlap():
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        mine = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & mine, panel["title"]
        cells |= mine
        assert panel["title"]
        assert panel["type"] == "row" or panel["targets"]


def test_dashboard_shows_every_metric():
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for expression in EXPRESSIONS[len(RULES) :]
        for name, _ in METRIC.findall(expression)
    }
    missing = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed()} - shown
    assert missing <= {"leasehold_reaper_recovered"}


@pytest.mark.program("haproxy")
def test_haproxy_accepts_its_file_without_warnings(tmp_path):
    done = subprocess.run(
        [str(find_program("haproxy")), "-c", "-dW", "-f", DEPLOY / "haproxy.cfg"],
        env={"ADMIN_SOCKET": str(tmp_path / "admin.sock")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "valid" in done.stdout


@pytest.mark.parametrize("line", HAPROXY_ERRORS, ids=lambda line: line[0])
def test_haproxy_error_is_a_problem_document_without_a_false_claim(line):
    status, text = line
    document = json.loads(text)
    assert (document["status"], document["type"]) == (
        int(status),
        f"/problems/{document['code'].replace('_', '-')}",
    )
    assert document["code"] not in NOTHING_WRITTEN
    if document["code"] in KINDS:
        assert KINDS[document["code"]] == (document["status"], document["title"])
    assert "nothing was written" not in document["detail"]


def test_haproxy_has_a_problem_document_for_each_of_its_errors():
    assert [int(status) for status, _ in HAPROXY_ERRORS] == [400, 408, 413, 422, 500, 502, 503, 504]


def test_haproxy_forwards_heads_that_an_instance_accepts():
    size = int(re.search(r"^\s+tune.bufsize (\d+)$", HAPROXY, re.MULTILINE)[1])
    assert size - HAPROXY_REWRITES > HEAD_BYTES_MAX
    assert int(re.search(r"^\s+tune.http.maxhdr (\d+)$", HAPROXY, re.MULTILINE)[1]) > HEADERS_MAX


def test_haproxy_timeouts_are_longer_than_the_longest_wait():
    for name in ("client", "server"):
        assert haproxy_time(name) > WAIT_SECONDS_MAX + 10


def test_instance_drains_longer_than_haproxy_takes_to_notice():
    checks = dict(re.findall(r"\b(inter|fastinter|fall) (\w+)", HAPROXY))
    seen_after = seconds(checks["inter"]) + int(checks["fall"]) * seconds(checks["fastinter"])
    assert seen_after < Settings.model_fields["http_drain_seconds"].default


def test_compose_puts_three_instances_behind_haproxy():
    services = COMPOSE["services"]
    environment = services["haproxy"]["environment"]
    assert set(environment) == set(re.findall(r"^[^#\n]*\$\{(\w+)-", HAPROXY, re.MULTILINE))
    for number in (1, 2, 3):
        name, port = environment[f"INSTANCE_{number}"].split(":")
        assert port in services[name]["command"]
        assert services[name]["depends_on"] == {
            "grants": {"condition": "service_completed_successfully"}
        }
    for service in services.values():
        assert set(service.get("depends_on", [])) <= set(services)
        for name in service.get("environment", {}):
            if name.startswith("LEASEHOLD_"):
                assert name.removeprefix("LEASEHOLD_").lower() in Settings.model_fields
    for mounted in ("haproxy.cfg", "instance.sql"):
        assert (DEPLOY / mounted).is_file()
        assert any(f"./{mounted}:" in str(one.get("volumes")) for one in services.values())


def test_commands_in_the_files_exist():
    lines = [
        *re.findall(r"^ExecStart=\S+/leasehold (.*)$", UNIT, re.MULTILINE),
        *(" ".join(json.loads(found)) for found in COMMAND.findall(CONTAINER)),
        *(
            " ".join(service["command"])
            for service in COMPOSE["services"].values()
            if service["image"] == "leasehold"
        ),
    ]
    assert len(lines) >= 4
    for line in lines:
        name, *arguments = line.split()
        command = load_command(name)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {one for one in arguments if one.startswith("--")} <= known


def test_commands_in_the_comments_of_compose_exist():
    text = (DEPLOY / "compose.yaml").read_text()
    lines = re.findall(
        r"^#   docker compose -f deploy/compose.yaml run .* migrate (.*)$", text, re.MULTILINE
    )
    assert [" ".join(line.split()[:2]) for line in lines] == ["targets apply", "tokens create"]
    for line in lines:
        group, name, *arguments = line.split()
        command = load_command(group).commands[name]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {one for one in arguments if one.startswith("--")} <= known


def test_stop_timeouts_allow_for_a_graceful_stop():
    takes = Timings().stop_seconds
    given = int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)[1])
    assert takes < given
    assert takes < seconds(COMPOSE["x-instance"]["stop_grace_period"])


def test_systemd_accepts_the_unit(tmp_path):
    for line in ("Restart=always", "NoNewPrivileges=yes", "KillSignal=SIGTERM"):
        assert f"\n{line}\n" in UNIT
    program = find_program("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed, and its package is a whole init system")
    unit = tmp_path / "leasehold@.service"
    there = Path(sys.executable).parent / "leasehold"
    unit.write_text(UNIT.replace("/opt/leasehold/bin/leasehold", str(there)))
    done = subprocess.run([program, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_files_of_the_image_exist():
    root = DEPLOY.parent
    for line in re.findall(r"^COPY (?!--from)(.*)$", CONTAINER, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (root / source).exists()
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    for kept in [line[1:] for line in ignored if line.startswith("!")]:
        assert (root / kept).exists()


async def test_instance_login_has_only_the_roles_that_it_needs(servers):
    server = servers.get(next(iter(available_binaries())), "deploy")
    name = server.create_database(empty=True)
    url = server.url_of(name)
    migrate(url)
    statements = (DEPLOY / "instance.sql").read_text()
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in "ab":
            connection.execute(statements)
        connection.execute("ALTER ROLE leasehold_instance PASSWORD 'x'")
        [owner] = connection.execute(
            "SELECT pg_has_role('leasehold_instance', 'leasehold_owner', 'MEMBER')"
        ).fetchone()
        assert not owner
    login = make_conninfo(url, user="leasehold_instance", password="x")
    async with PostgresRoleStores(login) as stores:
        assert await stores.api.read_active_tokens() == {}
    with psycopg.connect(login) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT * FROM leasehold.intents")
    server.drop_database(name)
    server.drop_roles()
