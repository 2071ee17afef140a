"""A process of `leasehold demo`: the same `leasehold` command, but it ends with whoever started it.

The process asks the kernel itself for a SIGTERM at its parent's death, so nothing runs between fork
and exec, and a demo that is killed with SIGKILL leaves no worker and no gateway behind. The limit:
Linux only, like the embedded database, and that one does stay up until the next start stops it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have this process end when its parent does; raises SystemExit if that has happened already.

    The kernel means the parent's thread that made us, so that must be its main thread.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def main() -> None:
    """Run as `python -m leasehold.demo.child <parent's process id> <command> ...`."""
    parent, *arguments = sys.argv[1:]
    end_with(int(parent))
    # Only now: this takes a while, and the parent may die meanwhile.
    from leasehold.cli.main import app

    app(args=arguments, prog_name="leasehold")


if __name__ == "__main__":
    main()
