"""Logs, metrics and traces of a process. Nothing here decides anything."""
