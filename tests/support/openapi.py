"""`make openapi`: writes docs/reference/openapi.json from the routes."""

from __future__ import annotations

import json
from pathlib import Path

from fastapi import FastAPI

from leasehold.web.app import add_routes
from leasehold.web.schemas.openapi import describe

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


def written() -> str:
    """Return the document as it is stored in the repository."""
    return json.dumps(describe(add_routes(FastAPI())), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(written())
