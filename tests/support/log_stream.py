"""Configures the logs of the test process, and restores everything that this changed."""

from __future__ import annotations

import io
import logging
import sys
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leasehold.observe import logs
from leasehold.observe.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def restored_logs() -> Iterator[io.StringIO]:
    """Yield a stream for `configure_logs`; restore handlers, hooks and known secrets afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooks = sys.excepthook, sys.unraisablehook, threading.excepthook
    known, logs._KNOWN = logs._KNOWN, Redactor()
    try:
        with warnings.catch_warnings():
            yield io.StringIO()
    finally:
        logging.captureWarnings(capture=False)
        root.handlers[:] = handlers
        root.setLevel(level)
        sys.excepthook, sys.unraisablehook, threading.excepthook = hooks
        logs._KNOWN = known


@contextmanager
def log_stream(level: str = "debug") -> Iterator[io.StringIO]:
    """Send all lines to a stream, as JSON."""
    with restored_logs() as stream:
        logs.configure_logs("json", level, stream)
        yield stream
