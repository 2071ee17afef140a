"""The HTTP API as it runs: a real server on real sockets, on a real database."""
