"""Gateways against real servers: the sandbox, and one that breaks a connection at any byte."""
