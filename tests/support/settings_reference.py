"""Writes docs/reference/settings.md from the fields of Settings and the texts below them.

A test fails when the page and the settings differ.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le

from leasehold.cli.options import setting_texts
from leasehold.config import OPERATOR_VARIABLE, PREFIX, Settings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

PATH = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"

INTRODUCTION = f"""\
# Settings

A process reads its settings once, from the environment. Commands have options for those that people
change most often (`leasehold worker --help`); an option wins over its variable. Switches are `true`
or `false`, and lists are separated by commas. Settings that cannot work together are refused at the
start, with the relation that is broken. `{OPERATOR_VARIABLE}` is read by the command line alone:
the name under which interventions are recorded.

`make reference` generates this page from `leasehold.config.Settings`, which a library user passes
instead; a test fails when they differ.
"""

# Each section begins with this setting, in the order of the class.
SECTIONS = {
    "database_url": "The database",
    "api_url": "The HTTP API, for clients",
    "through_pooler": "Connections",
    "start_seconds": "Items and workers",
    "cluster_lease_seconds": "Leaders and streams",
    "concurrency": "An instance",
    "http_host": "The HTTP server",
    "log_format": "Logs",
}


def render() -> str:
    """Return the whole page."""
    texts = setting_texts()
    lines = [INTRODUCTION]
    for name, field in Settings.model_fields.items():
        if name in SECTIONS:
            lines += [
                f"\n## {SECTIONS[name]}\n",
                "| variable | default | | what for |",
                "|---|---|---|---|",
            ]
        variable = f"`{PREFIX}{name.upper()}`"
        lines.append(f"| {variable} | {_default(field)} | {_range(field)} | {texts[name]} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _range(field: FieldInfo) -> str:
    choices = [
        str(value)
        for kind in (field.annotation, *get_args(field.annotation))
        if get_origin(kind) is Literal
        for value in get_args(kind)
    ]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    low, high, above = -math.inf, math.inf, None
    for limit in field.metadata:
        if isinstance(limit, Ge):
            low = float(limit.ge)  # pyright: ignore[reportArgumentType]  (all of ours are numbers)
        elif isinstance(limit, Gt):
            above = float(limit.gt)  # pyright: ignore[reportArgumentType]
        elif isinstance(limit, Le):
            high = float(limit.le)  # pyright: ignore[reportArgumentType]
    if high == math.inf:
        return ""
    return (
        f"above {above:g}, at most {high:,.0f}" if above is not None else f"{low:g} to {high:,.0f}"
    )


def main() -> None:
    """Write the page."""
    PATH.write_text(render())


if __name__ == "__main__":
    main()
