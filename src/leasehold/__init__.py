"""Leasehold: outgoing side effects under leases that the database grants."""
