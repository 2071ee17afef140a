"""Without authentication only who speaks to this machine by a name of its own is answered.

A page of any origin can have its own name lead to 127.0.0.1, and then the browser of whoever looks
at it would send our API what the page likes. It cannot choose what the browser calls the host.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING

from leasehold.web.problems import Problem

if TYPE_CHECKING:
    from leasehold.web.headers import Headers

_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9.-]+))(?::\d{1,5})?", re.ASCII)


def require_loopback_host(headers: Headers) -> None:
    """Refuse a request for another host; one that names none is no browser's."""
    host = headers.first(b"host")
    if host is not None and not is_loopback_host(host.decode("latin-1")):
        raise Problem("misdirected", "without authentication ask for localhost, 127.0.0.1 or [::1]")


def is_loopback_host(host: str) -> bool:
    """Say whether a Host, with any port, is this machine and nothing else."""
    found = _HOST.fullmatch(host.lower())
    if found is None:
        return False
    if found["name"] == "localhost":
        return True
    try:
        return ip_address(found["six"] or found["name"]).is_loopback
    except ValueError:
        return False
