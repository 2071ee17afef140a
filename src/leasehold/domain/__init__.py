"""Pure values and decisions. Nothing here awaits, reads a clock or opens a connection."""
