"""Finds a RAM disk for the data of throwaway servers."""

from __future__ import annotations

import os
from pathlib import Path


def ram_disk() -> Path | None:
    """Return /dev/shm if it allows execution and has 4 GiB free, else None; disks can be slow."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        return None
    room = os.statvfs(memory)
    executable = not room.f_flag & os.ST_NOEXEC
    return memory if executable and room.f_bavail * room.f_frsize > 4 * 1024**3 else None
