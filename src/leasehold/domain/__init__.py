"""Pure values and decisions: no awaits, no clock, no connections."""
