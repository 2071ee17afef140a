"""`pip install leasehold` without extras: it enqueues, and says what to install for the rest.

The test builds a wheel and runs it with nothing beside its core dependencies. These are taken from
the environment that runs the tests, so no network is needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import leasehold
from tests.support.servers import available_binaries

ROOT = Path(leasehold.__file__).parents[2]
# All that an application needs which only enqueues.
ENQUEUE_NAMES = (
    *("AsyncClient", "Client", "Intake", "LeaseholdError", "NewIntent", "Status"),
    *("aenqueue_in", "aenqueue_many_in", "enqueue_in", "enqueue_many_in"),
)


@pytest.fixture(scope="session")
def postgres():
    return next(iter(available_binaries()))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the wheel and its core dependencies, and nothing else."""
    site = tmp_path_factory.mktemp("site")
    wheels = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [wheel] = wheels.glob("*.whl")
    ZipFile(wheel).extractall(site)
    [own] = metadata.distributions(name="leasehold", path=[str(site)])
    for distribution in core_dependencies(own):
        for top in {path.parts[0] for path in distribution.files or () if path.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
    return site


def core_dependencies(own):
    found = {}
    wanted = [(own, "")]
    while wanted:
        distribution, extra = wanted.pop()
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            for needed in ("", *requirement.extras):
                if (requirement.name, needed) not in found:
                    one = metadata.distribution(requirement.name)
                    found[requirement.name, needed] = one
                    wanted.append((one, needed))
    return found.values()


def run(site, *arguments):
    # -S: without the packages of the environment that runs the tests.
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env={"PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
    )


def test_bare_install_has_no_server_dependencies(site):
    present = {path.name for path in site.iterdir()}
    assert {"leasehold", "httpx", "psycopg", "structlog"} <= present
    assert not {"aiohttp", "fastapi", "pydantic", "rich", "starlette", "typer"} & present


def test_bare_install_enqueues(site, database, outbox):
    outbox.publish("sms")
    program = f"""
import asyncio, sys
import psycopg
from leasehold import {", ".join(ENQUEUE_NAMES)}

async def main(url):
    async with Intake.connected(url) as intake:
        await intake.enqueue("sms", 1, idempotency_key="intake")
    async with AsyncClient("http://127.0.0.1:9"):
        pass

url = sys.argv[1]
asyncio.run(main(url))
with psycopg.connect(url) as connection:
    enqueue_in(connection, "sms", 2, idempotency_key="transactional")
Client("http://127.0.0.1:9").close()
"""
    done = run(site, "-c", program, database.url_as("ingest"))
    assert (done.returncode, done.stderr) == (0, "")
    rows = database.execute("SELECT idempotency_key AS key FROM leasehold.intents")
    assert {row["key"] for row in rows} == {"intake", "transactional"}


def test_bare_install_says_what_its_command_needs(site):
    done = run(site, "-m", "leasehold", "worker")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "Error: typer is not installed. It belongs to the extra 'server': "
        "pip install 'leasehold[server]'"
    )


def test_name_of_the_server_says_which_extra_it_needs(site):
    done = run(site, "-c", "from leasehold import Instance")
    assert "leasehold.Instance cannot be imported" in done.stderr
    assert "pip install 'leasehold[server]'" in done.stderr.splitlines()[-1]


def test_links_of_the_published_readme_are_absolute(site):
    [own] = metadata.distributions(name="leasehold", path=[str(site)])
    links = re.findall(r"\]\(([^)]+)\)", own.metadata.get_payload())
    assert len(links) > 5
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
