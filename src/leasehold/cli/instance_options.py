"""What every command that runs an instance can be told, in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer


def option(told: str, *names: str) -> Any:  # noqa: ANN401 (Typer's own type is not public)
    """Describe an option; its default is that of the settings, so the help tells it in words."""
    return typer.Option(*names, help=told, show_default=False)


Concurrency: TypeAlias = Annotated[int | None, option("Items in flight at a time (10).")]
Elector: TypeAlias = Annotated[
    str | None, option("Elect leaders by row or advisory, that is by an advisory lock (row).")
]
Standalone: TypeAlias = Annotated[
    bool | None, option("Lead every group from the start, or do not start.")
]
LogFormat: TypeAlias = Annotated[str | None, option("json or console (console).")]
LogLevel: TypeAlias = Annotated[str | None, option("debug, info, warning or error (info).")]
SettingsFile: TypeAlias = Annotated[
    Path | None, option("Lines such as LEASEHOLD_REAPER_SECONDS=5; read again on SIGHUP.")
]
