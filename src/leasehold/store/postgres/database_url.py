"""Parses a database URL and connects, without ever repeating its password.

The TLS settings become part of the URL, so every connection uses them.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument

_CONNECT_SECONDS = 10
_LIBPQ_WITH_REQUIRE_AUTH = 160_000
_REQUIRE_AUTH = re.compile(r"\brequire_auth=")

# At most one "@", and before it no character that ends the user and password part: libpq would take
# the rest of such a password for a host or port, and print it in its error message.
_URL = re.compile(r"postgres(ql)?://([^@/?#]*@)?[^@]*")
# From the least strict to the strictest.
_TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SYSTEM = "system"  # libpq's word for the authorities that the operating system trusts


def connection_parameters(database_url: str) -> dict[str, Any]:
    """Parse a URL or a `host=... dbname=...` string. Errors do not show it."""
    if re.match(r"[\w+.-]*://", database_url) and not _URL.fullmatch(database_url):
        raise InvalidArgument(
            "the database URL is malformed: write postgresql://user@host:port/database, with the "
            "password in PGPASSFILE or PGPASSWORD; in a URL, special characters of a password are "
            "percent-encoded ('@' is %40, '/' is %2F)"
        )
    if _REQUIRE_AUTH.search(database_url) and psycopg.pq.version() < _LIBPQ_WITH_REQUIRE_AUTH:
        raise InvalidArgument(
            f"libpq is of version {psycopg.pq.version() // 10000}, but require_auth in a database "
            "URL, such as the embedded database's, needs 16 or newer: run `pip install "
            "'psycopg[binary]'`"
        )
    try:
        parameters: dict[str, Any] = dict(conninfo_to_dict(database_url))
    except psycopg.Error:
        # libpq quotes what it cannot parse, so its message must not be chained.
        raise InvalidArgument(
            "the database URL is malformed: write postgresql://user@host:port/database, with the "
            "password in PGPASSFILE or PGPASSWORD"
        ) from None
    # In another encoding, the driver would return text as bytes, or not be able to send it.
    return {"connect_timeout": _CONNECT_SECONDS, **parameters, "client_encoding": "UTF8"}


def public_url(database_url: str) -> str:
    """Return a URL for people: without the password and without parameters."""
    parameters = connection_parameters(database_url)
    return (
        f"postgresql://{parameters['user']}@{parameters['host']}:{parameters['port']}"
        f"/{parameters['dbname']}"
    )


def with_database(database_url: str, name: str) -> str:
    """Return the URL of another database of the same server, with the same parameters."""
    parts = urlsplit(database_url)
    return urlunsplit(parts._replace(path=f"/{name}"))


def passwords_in(database_url: str) -> list[str]:
    """Return the passwords that a URL contains: of the login, and of the client's TLS key."""
    parameters = connection_parameters(database_url)
    return [str(parameters[name]) for name in ("password", "sslpassword") if parameters.get(name)]


def with_tls(database_url: str, tls: str | None, authorities: str | None) -> str:
    """Return the URL with these TLS settings, or raise InvalidArgument if it contradicts them.

    `tls` is the minimum; the URL itself may be stricter. `authorities` is the file of trusted
    certificate authorities, or 'system'.
    """
    if tls is None and authorities is None:
        return database_url
    given = connection_parameters(database_url)
    mode = given.get("sslmode") or tls or "prefer"
    if mode not in _TLS_MODES or _TLS_MODES.index(mode) < _TLS_MODES.index(tls or "disable"):
        raise InvalidArgument(
            f"database_tls is {tls}, but the database URL has the weaker sslmode={mode}: "
            "remove it from the URL"
        )
    added = {"sslmode": mode}
    if authorities is not None:
        _require_authorities(mode, authorities, given.get("sslrootcert"))
        added["sslrootcert"] = authorities
    if _TLS_MODES.index(mode) >= _TLS_MODES.index("require"):
        # Otherwise Kerberos could encrypt instead of TLS, without any certificate.
        if given.get("gssencmode", "disable") != "disable":
            raise InvalidArgument(
                f"database_tls is {mode}, but the database URL sets gssencmode: remove one of them"
            )
        added["gssencmode"] = "disable"
    return make_conninfo(database_url, **added)


def unverified_hosts(database_url: str) -> list[str]:
    """Return the servers of a URL on other machines whose certificates are not verified."""
    defaults = {
        one.keyword.decode(): one.val.decode()
        for one in psycopg.pq.Conninfo.get_defaults()
        if one.val is not None
    }
    given = defaults | connection_parameters(database_url)
    mode = given.get("sslmode") or "prefer"
    if given.get("sslrootcert") == _SYSTEM or mode == "verify-full":
        return []
    hosts = str(given.get("hostaddr") or given.get("host") or "").split(",")
    return [host for host in hosts if not _is_on_this_machine(host)]


def _is_on_this_machine(host: str) -> bool:
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _require_authorities(mode: str, authorities: str, given: str | None) -> None:
    if not mode.startswith("verify-"):
        raise InvalidArgument(
            f"database_tls_ca is set, but {mode} verifies no certificate: set database_tls to "
            "verify-full"
        )
    if given not in {None, authorities}:
        raise InvalidArgument(
            "database_tls_ca and the sslrootcert of the database URL differ: remove one of them"
        )
    if authorities != _SYSTEM and not Path(authorities).is_file():
        raise InvalidArgument(f"database_tls_ca: the file {authorities} does not exist")


def connect(database_url: str, *, application_name: str) -> psycopg.Connection[Any]:
    """Open a connection in autocommit that also works through a transaction pooler.

    Its `transaction()` does not depend on the defaults of the login or the database.
    """
    parameters = connection_parameters(database_url)
    parameters.setdefault("application_name", application_name)
    try:
        connection = psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        message = without_password(str(error), parameters)
        raise DatabaseUnavailable(f"cannot connect to the database: {message}") from None
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.read_only = False
    return connection


def without_password(text: str, parameters: dict[str, Any]) -> str:
    """Return the text on one line, without the password if a driver repeated it."""
    line = " ".join(text.split())
    password = parameters.get("password")
    return line.replace(str(password), "***") if password else line
