"""What the package offers, and what it costs to import it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import leasehold


@pytest.mark.parametrize("name", leasehold.__all__)
def test_every_public_name_has_a_home(name):
    assert getattr(leasehold, name).__name__ == name


def test_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="competing"):
        _ = leasehold.competing


def test_importing_the_package_loads_no_driver_and_no_client():
    heavy = ("psycopg", "aiohttp", "httpx")
    program = f"import sys, leasehold; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
