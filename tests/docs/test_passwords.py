"""No example puts a password on a command line, and the ways that the documents name work."""

from __future__ import annotations

import re

import pytest
from psycopg.conninfo import conninfo_to_dict

from leasehold.cli.main import COMMANDS, load_command
from tests.docs.test_names import DOCUMENTS, by_name
from tests.support.cli_process import forked_leasehold as leasehold
from tests.support.servers import available_binaries

PASSWORD_IN_URL = re.compile(r"\w://[^\s:/@]*:[^\s/@]+@")


@pytest.fixture(scope="session")
def postgres():
    return next(iter(available_binaries()))


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_no_example_has_a_password_in_a_url(document):
    assert PASSWORD_IN_URL.findall(document.read_text()) == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_option_is_explained_with_a_password_in_a_url(name):
    command = load_command(name)
    parts = [command, *getattr(command, "commands", {}).values()]
    helps = [str(getattr(option, "help", "")) for part in parts for option in part.params]
    assert PASSWORD_IN_URL.findall("\n".join(helps)) == []


@pytest.mark.parametrize("way", ["PGPASSFILE", "PGPASSWORD", "~/.pgpass"])
def test_password_comes_from_a_file_or_the_environment(database, tmp_path, monkeypatch, way):
    login = conninfo_to_dict(database.url_as("readonly"))
    line = f"{login['host']}:{login['port']}:*:{login['user']}:{login['password']}\n"
    file = tmp_path / ".pgpass"
    file.write_text(line)
    file.chmod(0o600)
    url = f"postgresql://{login['user']}@{login['host']}:{login['port']}/{login['dbname']}"
    assert leasehold("intents", "list", url=url).returncode == 1, "the server asks for a password"
    monkeypatch.setenv("HOME" if way == "~/.pgpass" else way, str(tmp_path))
    if way == "PGPASSFILE":
        monkeypatch.setenv(way, str(file))
    if way == "PGPASSWORD":
        monkeypatch.setenv(way, str(login["password"]))
    result = leasehold("intents", "list", url=url)
    assert result.returncode == 0, result.stderr
