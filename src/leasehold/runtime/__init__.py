"""The parts of a running process: the instance, its elections, notifications and shutdown."""
