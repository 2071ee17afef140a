"""Reading a database URL and connecting, without ever repeating its password to anyone.

TLS is a part of the address: who connects by it, whatever for, does so with what was asked for.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leasehold.domain.errors import DatabaseUnavailable, InvalidArgument

_CONNECT_SECONDS = 10

# At most one "@", and before it no character that ends the user and password part. libpq would take
# such a password for a host or a port and print it in its complaint.
_URL = re.compile(r"postgres(ql)?://([^@/?#]*@)?[^@]*")
# As strict as the ones before it, and more.
_TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SYSTEM = "system"  # what libpq calls the authorities that the operating system trusts


def connection_parameters(database_url: str) -> dict[str, Any]:
    """Parse a URL, or a `host=... dbname=...` string; refuse it without showing it."""
    if re.match(r"[\w+.-]*://", database_url) and not _URL.fullmatch(database_url):
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


def passwords_in(database_url: str) -> list[str]:
    """Return the passwords that a URL contains: of the login, and of the client's TLS key."""
    parameters = connection_parameters(database_url)
    return [str(parameters[name]) for name in ("password", "sslpassword") if parameters.get(name)]


def with_tls(database_url: str, tls: str | None, authorities: str | None) -> str:
    """Give the address with these TLS settings in it; refuse one that contradicts them.

    `tls` is the least that is asked for: what the address itself says may be stricter.
    `authorities` is the file of those whose certificates are trusted, or 'system'.
    """
    if tls is None and authorities is None:
        return database_url
    said = connection_parameters(database_url)
    mode = said.get("sslmode") or tls or "prefer"
    if mode not in _TLS_MODES or _TLS_MODES.index(mode) < _TLS_MODES.index(tls or "disable"):
        raise InvalidArgument(
            f"database_tls is {tls}, but the database URL says sslmode={mode}, which is less: "
            "leave it out there"
        )
    more = {"sslmode": mode}
    if authorities is not None:
        _refuse_authorities(mode, authorities, said.get("sslrootcert"))
        more["sslrootcert"] = authorities
    if _TLS_MODES.index(mode) >= _TLS_MODES.index("require"):
        # Kerberos would otherwise encrypt in the place of TLS, and nobody would see a certificate.
        if said.get("gssencmode", "disable") != "disable":
            raise InvalidArgument(
                f"database_tls is {mode}, but the database URL asks for gssencmode: leave one out"
            )
        more["gssencmode"] = "disable"
    return make_conninfo(database_url, **more)


def _refuse_authorities(mode: str, authorities: str, said: str | None) -> None:
    if not mode.startswith("verify-"):
        raise InvalidArgument(
            f"database_tls_ca is given, but with {mode} no certificate is verified: set "
            "database_tls to verify-full"
        )
    if said not in {None, authorities}:
        raise InvalidArgument(
            "database_tls_ca and the sslrootcert of the database URL differ: leave one of them out"
        )
    if authorities != _SYSTEM and not Path(authorities).is_file():
        raise InvalidArgument(f"database_tls_ca: there is no file {authorities}")


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
