"""The client of the HTTP API: `AsyncClient`, and `Client` for code that does not await.

`async_client` and `async_transport` are written by hand; `sync_client` and `sync_transport` are
generated from them (`make generate`). Everything else here does no input or output: `requests`
builds what is sent, `responses` and `errors` read what comes back, `limits` bounds the time and the
size of a response, `retry` decides whether to send again, `bulk` and `event_stream` keep the state
of the two calls that send several requests.

The client repeats a request only where that is safe: no instance received it, it was rejected
before anything was written, or it is idempotent. Enqueuing is idempotent because every intent has
an idempotency key; the client generates one if the caller gives none.
"""
