"""The index of the test support modules, in tests/support/__init__.py, is complete."""

from __future__ import annotations

import re
from pathlib import Path

import tests.support


def test_every_support_module_is_in_the_index():
    folder = Path(tests.support.__file__).parent
    indexed = set(re.findall(r"^    ([\w.]+)/?  ", tests.support.__doc__ or "", re.MULTILINE))
    present = {
        path.stem if path.suffix == ".py" else path.name
        for path in folder.iterdir()
        if path.name not in {"__init__.py", "__pycache__"}
    }
    assert indexed == present
