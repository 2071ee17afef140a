"""The protocol of a connection that receives hints from the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Hint(NamedTuple):
    """A notification: a target has due work, or a lease is free. It may come late, or never."""

    kind: Literal["due", "lease"]
    name: str


class Notifications(Protocol):
    """Receives hints. Each method raises DatabaseUnavailable if the connection fails."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is listening."""
        ...

    async def listen(self) -> None:
        """Connect and subscribe."""
        ...

    def received(self, seconds: float) -> AsyncGenerator[Hint]:
        """Yield hints as they arrive, for this long."""
        ...

    async def ping(self) -> None:
        """Prove that the connection is alive."""
        ...

    async def close(self) -> None:
        """Close the connection; `listen` opens a new one."""
        ...
