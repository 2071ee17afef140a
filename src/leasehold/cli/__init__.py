"""The command line: one module per command; `main.py` lists them.

Shared by several commands: `options.py` (options and their parsing), `backend.py` (database or
HTTP API), `tables.py` (output).
"""
