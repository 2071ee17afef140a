"""Elects and repairs: who may lead, for how long a leader may trust its lease, and what follows
when an instance dies.

The protocol of an election, which is the lease of everything of a group of targets:

1. An elector reads its `trust_clock` and then asks its lease backend for the lease, which the
   database grants to one instance at a time, under the next epoch.
2. The instance leads for one `Term`. It trusts the lease for less than the database does, counted
   from the clock reading *before* it asked (`domain.lease.TrustWindow`), so trust ends first.
3. A term whose renewal fails, or is not answered while there is trust left, ends at once. Trust
   that has ended never comes back under the same epoch.
4. Every write carries the lease with its epoch. The database checks it, and its own clock, under a
   lock. So the fence stops a former leader from writing; trust stops it from calling.

The reaper ends the expired claims of dead workers on the ledger in the dead worker's name: a call
that had not begun is retried, one that had begun is in doubt. The lease `leasehold-reaper` selects
the one instance that reaps.

Claims and streams follow the same rules: see `executor`. A lost lease is not an error. It is
counted and logged, and the work continues elsewhere.
"""
