"""Self-signed certificates; mark the test with program("openssl")."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.support.required_programs import find_program

if TYPE_CHECKING:
    from pathlib import Path


def self_signed(folder: Path, *names: str, file: str = "server") -> tuple[Path, Path]:
    """Create a certificate for names such as DNS:localhost; return its file and its key's."""
    certificate, key = folder / f"{file}.pem", folder / f"{file}.key"
    command = f"{find_program('openssl')} req -x509 -newkey rsa:2048 -nodes -days 2"
    subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName={','.join(names)}"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *subject, *files], check=True, capture_output=True)
    return certificate, key
