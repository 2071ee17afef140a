"""Reading a database URL and connecting, without ever repeating its password to anyone."""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument

_CONNECT_SECONDS = 10

# At most one "@", and before it no character that ends the user and password part. libpq would take
# such a password for a host or a port and print it in its complaint.
_URL = re.compile(r"postgres(ql)?://([^@/?#]*@)?[^@]*")


def connection_parameters(database_url: str) -> dict[str, Any]:
    """Parse a URL, or a `host=... dbname=...` string; refuse it without showing it."""
    if "://" in database_url and not _URL.fullmatch(database_url):
        raise InvalidArgument(
            "the database URL cannot be read: write postgresql://user:password@host:port/database, "
            "and percent-encode special characters in the password ('@' is %40, '/' is %2F)"
        )
    try:
        parameters: dict[str, Any] = dict(conninfo_to_dict(database_url))
    except psycopg.Error:
        # libpq quotes what it could not parse, so its message must not be chained either.
        raise InvalidArgument(
            "the database URL cannot be read: write postgresql://user:password@host:port/database"
        ) from None
    return {"connect_timeout": _CONNECT_SECONDS, **parameters}


def connect(database_url: str, *, application_name: str) -> psycopg.Connection[Any]:
    """Open a plain connection in autocommit that also works through a transaction pooler."""
    parameters = connection_parameters(database_url)
    parameters.setdefault("application_name", application_name)
    try:
        return psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        said = without_password(str(error), parameters)
        raise DatabaseUnavailable(f"cannot connect to the database: {said}") from None


def without_password(text: str, parameters: dict[str, Any]) -> str:
    """Put the text on one line and blank out the password, should a driver have repeated it."""
    line = " ".join(text.split())
    password = parameters.get("password")
    return line.replace(str(password), "***") if password else line
