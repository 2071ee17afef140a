"""`leasehold --help` lists every command and imports none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from leasehold.cli.main import COMMANDS, app, load_command

HEAVY = ("aiohttp", "asyncio", "fastapi", "psycopg", "pydantic", "leasehold.store")


@pytest.mark.parametrize("name", COMMANDS)
def test_overview_repeats_the_first_paragraph_of_each_help(name):
    assert load_command(name).help.split("\n\n")[0] == COMMANDS[name].summary


@pytest.mark.parametrize("name", COMMANDS)
def test_command_prints_its_help(name):
    result = CliRunner().invoke(app, [name, "--help"], prog_name="leasehold")
    assert result.exit_code == 0, result.output
    assert f"Usage: leasehold {name} " in result.output


def test_mistyped_command_is_suggested():
    result = CliRunner().invoke(app, ["wroker"])
    assert result.exit_code == 2
    assert "Did you mean 'worker'?" in result.output


def test_overview_imports_no_command():
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
