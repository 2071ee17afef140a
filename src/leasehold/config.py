"""One settings object, read once from the environment (LEASEHOLD_...) and the command line.

It refuses what cannot work and says which relation is broken. The database's address is a secret:
it holds a password, so neither this object nor its errors show it.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from leasehold.domain.errors import InvalidArgument
from leasehold.store.postgres.pool import PoolSettings

PREFIX = "LEASEHOLD_"


class Settings(BaseSettings):
    """What a process of Leasehold is told at start."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", hide_input_in_errors=True
    )

    database_url: SecretStr | None = None
    # True where a pooler in transaction mode (pgbouncer) stands before the database.
    through_pooler: bool = False
    # One round trip more per call, for a network that drops idle connections without a word.
    check_on_checkout: bool = False
    application_name: str = Field(default="leasehold", min_length=1, max_length=63)
    pool_size_min: int = Field(default=1, ge=0, le=1000)
    pool_size_max: int = Field(default=10, ge=1, le=1000)
    pool_waiting_max: int = Field(default=1000, ge=1, le=1_000_000)
    pool_wait_seconds: float = Field(default=5.0, gt=0, le=3600)
    connect_seconds: int = Field(default=5, ge=2, le=60)
    statement_seconds: float = Field(default=5.0, ge=0.1, le=3600)
    lock_seconds: float = Field(default=3.0, ge=0.1, le=3600)
    idle_in_transaction_seconds: float = Field(default=5.0, ge=0.1, le=3600)
    lease_seconds: float = Field(default=30.0, ge=1, le=3600)

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        pool = self.pool()
        # A call that answers after the lease is gone has renewed nothing, and its holder stood
        # still for as long.
        _require_below("the longest call", pool.call_seconds, self.lease_seconds)
        _require_below(
            "idle_in_transaction_seconds", self.idle_in_transaction_seconds, self.lease_seconds
        )
        return self

    def pool(self) -> PoolSettings:
        """Give the part that the store is built with."""
        try:
            return PoolSettings(
                application_name=self.application_name,
                size_min=self.pool_size_min,
                size_max=self.pool_size_max,
                waiting_max=self.pool_waiting_max,
                wait_seconds=self.pool_wait_seconds,
                connect_seconds=self.connect_seconds,
                statement_seconds=self.statement_seconds,
                lock_seconds=self.lock_seconds,
                idle_in_transaction_seconds=self.idle_in_transaction_seconds,
                through_pooler=self.through_pooler,
                check_on_checkout=self.check_on_checkout,
            )
        except InvalidArgument as error:
            raise ValueError(str(error)) from None

    def required_database_url(self) -> str:
        """Give the address, or say how to."""
        if self.database_url is None or not self.database_url.get_secret_value():
            raise InvalidArgument("no database: give --database-url or set LEASEHOLD_DATABASE_URL")
        return self.database_url.get_secret_value()


def read_settings(**given: Any) -> Settings:  # noqa: ANN401 (pydantic checks each)
    """Read the environment; what is `given` and not None goes before it."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = [_problem(one["loc"], one["msg"]) for one in error.errors(include_input=False)]
        # Not chained: pydantic's own message would show what was given.
        raise InvalidArgument("; ".join(problems)) from None


def _problem(place: tuple[int | str, ...], message: str) -> str:
    said = message.removeprefix("Value error, ")
    return f"{PREFIX}{str(place[0]).upper()}: {said}" if place else said


def _require_below(name: str, seconds: float, lease_seconds: float) -> None:
    if seconds >= lease_seconds:
        raise ValueError(
            f"{name} ({seconds:g} seconds) must be less than lease_seconds ({lease_seconds:g}): "
            "a holder must know that it lost the database before its lease runs out"
        )
