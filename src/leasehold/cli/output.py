"""How every command writes to the terminal."""

from __future__ import annotations

import typer

from leasehold.domain.printable import printable


def echo(text: object, *, err: bool = False, nl: bool = True, color: str | None = None) -> None:
    """Print text. Names and messages in it come from others, so what could drive a terminal is
    escaped; only line breaks are not.
    """
    typer.secho(printable(str(text), keep="\n"), fg=color, err=err, nl=nl)
