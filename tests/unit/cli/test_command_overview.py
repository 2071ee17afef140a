"""`leasehold --help` tells of every command, and waits for none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from leasehold.cli.main import COMMANDS, app, load_command

HEAVY = ("aiohttp", "asyncio", "fastapi", "psycopg", "pydantic", "leasehold.store")


@pytest.mark.parametrize("name", COMMANDS)
def test_overview_says_of_a_command_what_its_own_help_says_first(name):
    assert load_command(name).help.split("\n\n")[0] == COMMANDS[name].told


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_there_under_its_name(name):
    result = CliRunner().invoke(app, [name, "--help"], prog_name="leasehold")
    assert result.exit_code == 0, result.output
    assert f"Usage: leasehold {name} " in result.output


def test_mistyped_command_is_told_the_right_one():
    result = CliRunner().invoke(app, ["wroker"])
    assert result.exit_code == 2
    assert "Did you mean 'worker'?" in result.output


def test_overview_loads_no_command():
    program = (
        "import sys\n"
        "from leasehold.cli.main import app\n"
        "app(['--help'], standalone_mode=False)\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
    for name in COMMANDS:
        assert f" {name} " in done.stdout
