"""The URL chooses the database, and one that is not supported is refused without its password."""

from __future__ import annotations

import traceback

import pytest

from leasehold.config import Settings
from leasehold.domain.errors import InvalidArgument
from leasehold.store.database import database_at, schema_script, server_at, with_tls
from leasehold.store.pool_settings import PoolSettings

SUPPORTED = [
    "postgresql://user:hunter1@127.0.0.1:1/name",
    "postgres://user:hunter1@127.0.0.1:1/name",
    "host=127.0.0.1 port=1 user=user dbname=name password=hunter1",
]
UNSUPPORTED = [
    "mysql://user:hunter1@127.0.0.1/name",
    "mssql+pyodbc://user:hunter1@127.0.0.1/name",
    "POSTGRESQL://user:hunter1@127.0.0.1/name",
    "://user:hunter1@127.0.0.1/name",
]


@pytest.mark.parametrize("url", SUPPORTED)
def test_supported_url_gives_a_database_that_shows_no_password(url):
    database = database_at(url)
    assert database.public_url == "postgresql://user@127.0.0.1:1/name"
    assert list(database.secrets) == ["hunter1"]
    assert database.scopes == {"item", "stream", "cluster"}


@pytest.mark.parametrize("url", UNSUPPORTED)
@pytest.mark.parametrize(
    "use", [database_at, server_at, schema_script, lambda url: with_tls(url, "require", None)]
)
def test_unsupported_url_is_refused_with_advice_and_without_its_password(use, url):
    with pytest.raises(InvalidArgument, match="postgresql://user@host:port/database") as raised:
        use(url)
    told = "".join(traceback.format_exception(raised.value, chain=True))
    assert "hunter1@" not in told.replace(repr(url), "")


def test_refusal_names_the_scheme_that_is_not_supported():
    with pytest.raises(InvalidArgument, match=r"databases at mysql:// are not supported"):
        database_at(UNSUPPORTED[0])


def test_database_behind_a_pooler_has_no_hints():
    direct, pooled = (
        database_at(SUPPORTED[0], PoolSettings(through_pooler=pooled)) for pooled in (False, True)
    )
    assert direct.notifications("worker-1") is not None
    assert pooled.notifications("worker-1") is None


def test_settings_without_a_url_have_no_database(monkeypatch):
    monkeypatch.delenv("LEASEHOLD_DATABASE_URL", raising=False)
    with pytest.raises(InvalidArgument, match="no database"):
        Settings().database()
