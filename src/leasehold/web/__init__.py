"""The HTTP API: every instance accepts intents, answers questions about them, and takes operator
commands.

What a caller can rely on:

- 201 or 200 for an intent means that it is committed. If the response is lost, send the request
  again with the same idempotency key, to any instance: it returns the same intent.
- Every refusal is a problem document (RFC 9457) that says what to do, and nothing was written. The
  exception is 503 `database_unavailable`: the outcome is unknown, and retrying with the same key is
  safe.
- Everything a client can send is bounded: bytes, headers, nesting, time, connections.

The way of a request: `server` (Granian) reads it, `middleware` gives it an id and a log line and
turns errors into problem documents, `auth` finds its token. POST /v1/intents then goes straight to
`intake`; all other requests go to a FastAPI route in `routes`. Each uses the database role of its
scope.
"""
