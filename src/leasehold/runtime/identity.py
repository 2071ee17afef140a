"""Who a process is, in the logs, the claims, the leases and the ledger."""

from __future__ import annotations

import os
import secrets
import socket


def new_worker_id() -> str:
    """Name this process as nobody else is named: where it runs, as which process, and by chance."""
    return f"{socket.gethostname()[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
