"""Executors turn due intents into calls, and outcomes into rows of the ledger.

There are three ways to get work, and one way to do it:

    claim_loop.py (scope item)    claims due items ──────┐
    streams/ (scope stream)       claims due streams ────┼──► runner.py ──► completer.py ──► ledger
    leader/ (scope cluster)       marks due items ───────┘    calls         records in batches

The record of a stream's head brings the next head, which goes from the completer to the runner.

A piece of work in memory is one `Item` (`item.py`), in a slot of the instance (`slots.py`).

What holds in this package: a call is made only under a lease that is trusted at that moment, and a
result is written only while the lease is still trusted. What cannot start now is not claimed or
marked.

The protocol of a claim, which is the lease of one item:

1. A worker reads its `trust_clock` and then asks the database for due items
   (`claim_outbox_batch`). Each item is leased to it under a fresh token, until a time on the
   database's clock.
2. The worker trusts the claim for less than that, counted from the clock reading *before* it asked
   (`domain.lease.TrustWindow`). The database counts from later, so trust ends first.
3. A heartbeat renews all claims in one call, several times per lease. Trust is then counted from
   the reading before that call. A claim that the database reports as lost is lost, and its call is
   cancelled.
4. If the heartbeat fails, or is not answered while there is trust left, all claims are lost at
   once: calls that have not begun are not made, and results are not written. A worker that cannot
   reach the database must act as if another worker had its items.
5. Every write carries (worker, token). The database checks both, and its own clock, under a lock.
   So the fence stops a stale worker from writing; trust stops it from calling.
6. A call that takes longer than three leases is aborted: its claim is no longer renewed, the call
   is cancelled, and IN_DOUBT is recorded while the lease is still valid.
7. The claims of a dead worker expire, and the reaper repairs them (`coordination`).
"""
