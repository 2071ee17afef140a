"""Tests of the HTTP API: a real server on real sockets with a real database."""
