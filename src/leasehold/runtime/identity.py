"""Who a process is, in the logs, the claims, the leases and the ledger."""

from __future__ import annotations

import os
import secrets
import socket


def new_worker_id() -> str:
    """Name this process as nobody else is named: where it runs, as which process, and by chance.

    Whoever names it otherwise (LEASEHOLD_HOLDER_ID) sees to it that no two live ones share a name.
    """
    return f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
