"""The kernel of every background service: a step, the loop that runs it, a bounded wait."""
