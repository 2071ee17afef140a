"""A test that needs a missing program is skipped loudly, or fails where that is asked for."""

from __future__ import annotations

import os
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
