"""The ledger gateway: signed batches to the REST endpoint of a distributed ledger."""
