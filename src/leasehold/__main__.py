"""The command `leasehold`, also as `python -m leasehold`."""

from __future__ import annotations

import sys

from leasehold.extras import install_hint


def main() -> None:
    """Run the command line, or say what to install: it needs the extra `server`."""
    try:
        from leasehold.cli.main import app

        app()
    except ModuleNotFoundError as error:
        hint = install_hint(error)
        if hint is None:
            raise
        sys.exit(f"Error: {hint}")


if __name__ == "__main__":
    main()
