"""The README's SQL works, links lead somewhere, and the make commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leasehold.cli.targets import read_targets
from leasehold.store.postgres.store import PostgresStore

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


async def test_sql_of_the_readme_enqueues_for_the_target_that_its_file_defines(database, tmp_path):
    [file] = blocks(ROOT / "README.md", "toml")
    (tmp_path / "leasehold.toml").write_text(file)
    [contract] = read_targets(tmp_path / "leasehold.toml")
    [example] = blocks(ROOT / "README.md", "sql")
    async with PostgresStore(database.url) as store:
        await store.publish_contract(contract.target, contract.terms(), "ada")
        connection = database.connect()
        statements = [text for text in example.split(";") if text.strip()]
        answers = [connection.execute(statement).fetchall() for statement in statements]
        assert answers[-1] == [{"status": "pending", "attempts": 0}]
        [current] = await store.read_contracts()
    assert current.gateway == contract.gateway, "the example would break the one above it"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_and_headings_that_exist(document):
    for link, anchor in LINK.findall(document.read_text()):
        linked = document.parent / link if link else document
        assert linked.exists(), f"{document.name} links to {link}"
        if anchor:
            assert anchor in anchors(linked), f"{document.name} links to {link}#{anchor}"


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)", document.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_every_make_command_of_the_readme_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert named - targets == set()
    assert {"run", "test"} <= named


def test_ci_runs_exactly_the_commands_that_the_readme_explains():
    commands = re.findall(r"make [a-z-]+", (ROOT / ".ci" / "run").read_text())
    assert commands == ["make test-programs", "make check", "make test"]
    assert all(command in (ROOT / "README.md").read_text() for command in commands)
