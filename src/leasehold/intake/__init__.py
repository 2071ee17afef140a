"""How intents come in: one call (`accept`), or inside the caller's own transaction (`inside`).

Either way it is the same database function, so the same key with the same payload is the same
intent whichever way it came, and a call that is repeated because its answer was lost does no harm.
"""
