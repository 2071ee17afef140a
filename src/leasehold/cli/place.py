"""Where a command asks: the database, or the HTTP API of some instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasehold.config import read_settings
from leasehold.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from leasehold.client.asynchronous import AsyncClient
    from leasehold.config import Settings

# A person sits before it.
_PATIENCE_SECONDS = 10.0

# Neither reads the environment itself: what is on the command line goes before both variables.
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        help="postgresql://user:password@host:port/database, or LEASEHOLD_DATABASE_URL.",
        show_default=False,
    ),
]
ApiUrl = Annotated[
    str | None,
    typer.Option(
        help="https://leasehold.example.org, or LEASEHOLD_API_URL: ask there, and no database. "
        "The token comes from LEASEHOLD_API_TOKEN.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where to ask."""

    settings: Settings
    is_api: bool

    @classmethod
    def read(
        cls,
        database_url: str | None,
        api_url: str | None,
        application_name: str,
        **more: Any,  # noqa: ANN401 (settings, which pydantic checks)
    ) -> Place:
        """Decide: by the command line, or else the API of the environment, or else its database."""
        if database_url is not None and api_url is not None:
            raise InvalidArgument("--database-url and --api-url exclude each other: leave one out")
        settings = read_settings(
            database_url=database_url, api_url=api_url, application_name=application_name, **more
        )
        return cls(settings, is_api=database_url is None and bool(settings.api_url))

    def client(self) -> AsyncClient:
        """Give a client of the API."""
        from leasehold.client.asynchronous import (
            AsyncClient,
        )  # only who needs it waits for it

        # A variable that is empty is one that is not set.
        token = self.settings.api_token.get_secret_value() if self.settings.api_token else ""
        return AsyncClient(
            self.settings.api_url or "",
            token or None,
            ca_file=self.settings.api_tls_ca,
            patience_seconds=_PATIENCE_SECONDS,
        )
