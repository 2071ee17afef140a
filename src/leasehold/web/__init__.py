"""The HTTP API: any instance takes intents, answers about them, and lets people intervene.

What it promises to whoever calls:

- 201 or 200 for an intent means that it is committed. An answer that was lost is asked for again
  with the same key, at any instance: it is the same intent.
- Every refusal is a problem document (RFC 9457) that says what to do, and wrote nothing. 503 is the
  exception: then nothing is known, and repeating with the same key is safe.
- Nothing a client sends is unbounded: neither bytes, nor headers, nor depth, nor time.

A request passes: `protocol` (bytes to a request, or not), `entrance` (its id, its line in the log,
what became of it), `auth` (whose it is), then either `intake` (the one hot route, without the
framework in between) or a route of FastAPI; each acts with the database role of its scope.
"""
