"""Streams: many leases per instance, and under each the heads of one stream, in order."""
