"""The client of the HTTP API: `Client` for those who wait, `AsyncClient` for those who await.

Both are thin: what is asked stands in `calls`, what is answered in `answers` and `refusals`, and
when a call is made again in `patience`, all of it without input or output. So the two cannot
differ in anything but how they wait.

A call is made again by itself only where that can do no harm: it did not reach anybody, it was
refused before anything was written, or repeating it is the same as making it once. For intents that
is so because each carries an idempotency key; the client makes one where its caller gave none.
"""
