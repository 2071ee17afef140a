"""`make openapi`: write docs/reference/openapi.json, the description of the HTTP API."""

from __future__ import annotations

import json
from pathlib import Path

from fastapi import FastAPI

from leasehold.web.app import add_routes
from leasehold.web.schemas.openapi import describe

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


def written() -> str:
    """The document, as it stands in the repository."""
    return json.dumps(describe(add_routes(FastAPI())), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(written())
