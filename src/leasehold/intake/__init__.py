"""How intents are enqueued.

`intake` is for a caller without a transaction of its own, `transactional` for one with, and
`group_commit` lets the concurrent requests of a server share transactions. All call the same
database functions: the same key with the same payload is the same intent whichever way it came, and
repeating a call whose answer was lost is safe.
"""
