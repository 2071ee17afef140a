"""What a process tells about itself: logs, metrics and traces. It watches; it decides nothing."""
