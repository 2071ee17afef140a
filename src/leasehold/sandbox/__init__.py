"""The sandbox: an HTTP server with a gateway of each class, and faults that can be injected.

Demos, tests and benchmarks submit to it. Its request log is exact: an effect is counted in the same
step that logs its request, with no await in between. Whatever the log says happened, happened, once
per entry and in that order.
"""

from leasehold.sandbox import ledger as ledger  # registers itself, as every kind but http
from leasehold.sandbox.faults import FaultSettings
from leasehold.sandbox.server import Sandbox

__all__ = ["FaultSettings", "Sandbox"]
