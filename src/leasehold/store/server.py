"""The protocol of a server on which this process creates databases, such as that of the demo."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path


class ScratchDatabase(NamedTuple):
    """The new database, its URL, and the names of those that were dropped."""

    name: str
    url: str
    dropped: list[str]


class Server(Protocol):
    """A database server, with a login that may create databases."""

    def prepare(self, folder: Path, database: str) -> bool:
        """Create a database if it is missing, on the server whose data is in this folder.

        False, and nothing is created, if the data of the server is elsewhere.
        """
        ...

    def scratch_database(self, prefix: str) -> AbstractContextManager[ScratchDatabase]:
        """Create a database named `prefix` plus a random part; drop those of runs that have ended.

        While a run lasts, a concurrent run does not drop its database.
        """
        ...
