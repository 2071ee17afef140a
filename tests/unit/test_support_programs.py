"""A test that needs a missing program is skipped loudly, or fails where that is asked for.

Every program that a test needs is declared, so `make test-programs` installs it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.support import required_programs as programs

def pytest_runtest_setup(item):
    programs.require_programs(item)

def pytest_terminal_summary(terminalreporter):
    programs.report_missing(terminalreporter)

def pytest_configure(config):
    config.addinivalue_line("markers", "program(name)")
"""
TESTS = """
import pytest

@pytest.mark.program("no-such-program")
def test_one(): pass

@pytest.mark.program("no-such-program")
def test_two(): pass

@pytest.mark.program("sh")
def test_three(): pass
"""
DECLARED = re.compile(r"\bprogram\(([^)]*)\)|find_program\(([^)]*)\)")
OPTIONAL = {"systemd-analyze"}  # its package is a whole init system
WORKERS = [[], ["-p", "xdist.plugin", "-n", "2"]]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)

    def run(*arguments, **environment):
        command = [sys.executable, "-m", "pytest", "-q", "--rootdir=.", *arguments]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        # Other plugins take longer to load than the three tests to run.
        alone = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment = os.environ | alone | environment
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.parametrize("workers", WORKERS)
def test_missing_program_is_named_once_at_the_end(run, workers):
    result = run(*workers, TEST_REQUIRE_PROGRAMS="")
    assert result.returncode == 0, result.stdout
    assert "1 passed, 2 skipped" in result.stdout
    lines = [line for line in result.stdout.splitlines() if "make test-programs" in line]
    assert len(lines) == 1
    assert lines[0].startswith("2 tests need the program no-such-program")


@pytest.mark.parametrize("workers", WORKERS)
def test_missing_program_fails_the_test_where_programs_are_required(run, workers):
    result = run(*workers, TEST_REQUIRE_PROGRAMS="1")
    assert result.returncode == 1
    assert "1 passed, 2 errors" in result.stdout


def pinned_tools():
    """The programs of the packages that are pinned for tests of the OpenAPI document."""
    lock = json.loads((ROOT / "tests/support/openapi_clients/package-lock.json").read_text())
    packages = lock["packages"]
    ours = [packages[f"node_modules/{name}"] for name in packages[""]["dependencies"]]
    lines = (ROOT / "requirements/openapi.in").read_text().splitlines()
    python = {line for line in lines if not line.startswith("#")}
    return python | {name for package in ours for name in package["bin"]} - {"openapi", "tsserver"}


def test_every_program_that_a_test_needs_is_installed_by_make_test_programs():
    script = (ROOT / "tests/support/install_programs.sh").read_text()
    installed = set(re.search(r'^PROGRAMS="(.*)"', script, re.MULTILINE)[1].split())
    installed |= pinned_tools()
    needed = set()
    for file in (ROOT / "tests").rglob("*.py"):
        if file != Path(__file__):
            for found in DECLARED.findall(file.read_text()):
                needed |= set(re.findall(r"""["'](.+?)["']""", " ".join(found)))
    assert {"openssl", "postgres"} <= needed
    assert needed - OPTIONAL == installed


def test_program_outside_the_base_system_is_started_only_where_it_was_found():
    """A plain name in a command would fail, not skip, where the program is missing."""
    plain = re.compile(r"""["'](openssl|haproxy|pgbouncer|curl)["'],""")
    for file in (ROOT / "tests").rglob("*.py"):
        if file != Path(__file__):
            for line in file.read_text().splitlines():
                assert not plain.search(line) or "program(" in line, f"{file}: {line}"
