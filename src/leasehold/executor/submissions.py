"""What the runner hands to a gateway: one submission, or the heads of a stream in their order."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from leasehold.domain.retry import Confirm, LookUp, Submit, next_step
from leasehold.executor.item import Permit
from leasehold.gateway.protocol import LookupBatcher, Submission, SubmissionBatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.domain.lease import Clock
    from leasehold.domain.outcome import Outcome
    from leasehold.domain.retry import Step
    from leasehold.executor.item import Item
    from leasehold.executor.targets import Served
    from leasehold.gateway.protocol import Gateway
    from leasehold.observe.traces import Span


def submission_of(item: Item, trace: Span, clock: Clock) -> Submission:
    """Make the submission of an item."""
    claimed = item.claimed
    return Submission(  # positional: keywords would cost half as much again
        claimed.intent_id,
        claimed.target,
        claimed.attempt_no,
        claimed.submission_key,
        claimed.fencing_token,
        item.fence.holder_id,
        claimed.payload,
        claimed.body,
        claimed.content_type,
        claimed.metadata,
        trace,
        claimed.reference,
        claimed.stream,
        Permit(item, clock),
    )


def batch_of(item: Item, served: Served, step: Step) -> list[Item]:
    """Return the heads for which one request is made: an item, and as many of its followers as the
    request may have.

    The others come next, when these are recorded. A gateway that takes one lookup at a time looks
    up the first: other lookups would need slots, and time, of their own. Heads in doubt are sent
    one by one, because only the first was begun.
    """
    contract, gateway = served.contract, served.gateway
    if isinstance(step, Submit):
        return [item] if item.fence.must_begin(contract) else [item, *item.followers]
    if not isinstance(step, (LookUp, Confirm)) or not isinstance(gateway, LookupBatcher):
        return [item]
    # A later head may have been tried later, so that it is too early to look it up.
    kind = type(step)
    asked = takewhile(lambda one: type(next_step(one.claimed, contract)) is kind, item.followers)
    return [item, *asked]


async def submit_in_order(gateway: Gateway, submissions: Sequence[Submission]) -> list[Outcome]:
    """Submit consecutive heads of one stream with one request.

    Returns the outcomes of the first of them, at least one. The others were not sent.
    """
    if isinstance(gateway, SubmissionBatcher):
        taken = await gateway.submit_many(submissions[: gateway.submissions_max])
        if taken:
            return list(taken)
    # The gateway refuses them together, and it is unclear which one is the reason.
    return [await gateway.submit(submissions[0])]
