"""Gateways against real servers: the sandbox, and one that breaks off wherever a test says."""
