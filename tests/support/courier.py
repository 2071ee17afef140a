"""A kind of gateway that only this package knows, and `leasehold` with it: run it as a module.

It writes what it submits to a file, and answers with its secret in the detail.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar, Literal

from leasehold.__main__ import main
from leasehold.domain.gateway_terms import GatewayTerms
from leasehold.domain.outcome import Accepted, Rejected, Unknown
from leasehold.gateway.registry import GatewayKind, register
from leasehold.observe.logs import get_logger


class CourierTerms(GatewayTerms):
    """A folder in which each submission becomes a file."""

    refused_guarantees: ClassVar = {"fenced": "guarantee fenced is not for kind courier"}

    kind: Literal["courier"] = "courier"
    folder: str
    seal_env: str

    @property
    def secret_variables(self):
        return (self.seal_env,)

    @property
    def destination(self):
        return self.folder


class Courier:
    def __init__(self, contract, surroundings):
        self._terms = contract.gateway
        self._seal = surroundings.environment[self._terms.seal_env]
        self._sanitizer = surroundings.sanitizer

    async def submit(self, submission):
        seal = self._seal
        get_logger(__name__).info("letter_sealed", seal=seal)
        if submission.payload.value() == "refuse":
            return self._sanitizer.answer(Rejected(reason="refused", detail=seal), submission)
        letter = Path(self._terms.folder, str(submission.submission_key))
        await asyncio.to_thread(letter.write_text, seal)
        return Accepted(reference="by courier")

    async def lookup(self, _):
        return Unknown(reason="no_lookup")

    async def close(self):
        """Nothing is open."""


if __name__ == "__main__":
    register(GatewayKind(terms=CourierTerms, open=Courier))
    main()
