"""Leases: who may act, for how long it may believe so, and what follows when it may not.

The protocol of a claim, the lease of one item:

1. A worker reads its monotonic clock, then asks the database for due items (`claim_outbox_batch`).
   What it gets is leased to it under a fresh token until a moment on the database's clock.
2. It trusts the claim for less than that, counted from the reading *before* it asked
   (`domain.lease.TrustWindow`). The database counts from later, so trust ends first.
3. A heartbeat renews all claims in one call, several times per lease, and starts the trust anew
   from the reading before that call. What the database says is lost is lost: its call is cancelled.
4. When the heartbeat fails, or is not answered while there is trust left, everything is lost at
   once: calls that have not begun are not made, results are not written. Nobody can know whether
   the database still hears us, and whoever cannot ask must act as if somebody else has the work.
5. Every write carries (worker, token), and the database checks both and its own clock under a
   lock. So trust is not what keeps a stale worker from writing; it keeps it from calling.
6. Work that takes longer than three leases is aborted: it is renewed no more, its call is
   cancelled, and the doubt is written down while the lease still stands.
7. Whoever dies leaves claims that expire. The reaper ends them on the ledger in the name of the
   dead one: not begun is tried again, begun is in doubt. Which instance reaps is decided by a lease
   of its own (`leasehold-reaper`), so that they do not all do it; nothing would break if they did.

Losing a lease is a signal, not an error: it is counted and logged, and the work goes on elsewhere.
"""
