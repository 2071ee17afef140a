"""Fixtures of the fault tests."""

from __future__ import annotations

from tests.support.engine_fixtures import engine, postgres, sandbox

__all__ = ["engine", "postgres", "sandbox"]
