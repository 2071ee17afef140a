"""The kernel of every background service, and the small tools that several packages share.

A service is a step; the Loop runs it. Beside them stand a deadline for an await, the one backoff,
the one token bucket and the one parser of Retry-After.
"""
