"""Tells which extra of this package to install when an import of a dependency fails."""

from __future__ import annotations

import re
from importlib import metadata

_REQUIREMENT = re.compile(r"""(?P<package>[\w.-]+).*\bextra == ['"](?P<extra>[\w-]+)['"]""")


def install_hint(error: ModuleNotFoundError) -> str | None:
    """Return the advice for a missing dependency; None if no extra declares that module."""
    module = (error.name or "").partition(".")[0]
    for requirement in metadata.requires("leasehold") or ():
        found = _REQUIREMENT.match(requirement)
        if found and found["package"].lower().replace("-", "_") == module:
            extra = found["extra"]
            return (
                f"{module} is not installed. It belongs to the extra {extra!r}: "
                f"pip install 'leasehold[{extra}]'"
            )
    return None
