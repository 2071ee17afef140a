"""Faults: killed, paused and cut-off processes, and lost databases; nothing is lost or doubled."""
