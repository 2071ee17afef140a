"""One settings object, read once from the environment (LEASEHOLD_...) and the command line.

It refuses what cannot work and says which relation is broken. The database's address is a secret:
it holds a password, so neither this object nor its errors show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, FilePath, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.timing import LEASE_SECONDS, Timings
from leasehold.store.postgres.address import with_tls
from leasehold.store.postgres.pool import PoolSettings

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "LEASEHOLD_"


class Settings(BaseSettings):
    """What a process of Leasehold is told at start."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", hide_input_in_errors=True
    )

    database_url: SecretStr | None = None
    # The least that every connection to the database must have; None: what the address says.
    # Only verify-full knows whom it talks to: require encrypts, and is for development.
    database_tls: Literal["verify-full", "require", "prefer"] | None = None
    # A file of the authorities to trust, or "system".
    database_tls_ca: str | None = Field(default=None, min_length=1)
    # The role to act as, for a login that is a member of several; None: all that it inherits.
    database_role: str | None = None
    # For commands that ask the HTTP API instead of the database: where it is, what opens it, and
    # a file of the authorities to trust, where they are not the system's.
    api_url: str | None = None
    api_token: SecretStr | None = None
    api_tls_ca: FilePath | None = None
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
    # None: each contract's own. A number can only make leases shorter than their contracts say.
    lease_seconds: float | None = Field(default=None, ge=1, le=3600)
    heartbeat_seconds: float = Field(default=5.0, ge=0.05, le=1200)
    reaper_seconds: float = Field(default=10.0, ge=0.1, le=3600)
    shutdown_seconds: float = Field(default=20.0, ge=0, le=3600)
    poll_seconds: float = Field(default=1.0, ge=0.05, le=60)
    contracts_seconds: float = Field(default=5.0, ge=0.1, le=3600)
    # The lease of a leader, of which every group of targets with scope cluster has one.
    cluster_lease_seconds: float = Field(default=60.0, ge=1, le=86400)
    cluster_renew_seconds: float = Field(default=20.0, ge=0.05, le=86400)
    cluster_acquire_seconds: float = Field(default=30.0, ge=0.05, le=86400)
    schedule_refresh_seconds: float = Field(default=1.0, ge=0.05, le=3600)
    # How a group elects: by its lease row, or by an advisory lock; its leader pings this often.
    elector: Literal["row", "advisory"] = "row"
    cluster_ping_seconds: float = Field(default=0.3, ge=0.05, le=3600)
    # How this instance is called in leases, claims, logs and the ledger; None: by its host, its
    # process and by chance. No two that live at the same time may have the same name.
    holder_id: str | None = Field(default=None, min_length=1, max_length=128, pattern=r"^[!-~]+$")
    # Lead every group from the start, or do not start; by the lease row.
    standalone: bool = False
    # Items in flight in this process; each target's contract bounds its own share.
    concurrency: int = Field(default=10, ge=1, le=5000)
    # None: all that have a contract. In the environment: a JSON list of names.
    targets: tuple[str, ...] | None = None
    listen: bool = True
    reaper: bool = True
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    metrics_host: str = "127.0.0.1"
    # Of `leasehold serve`. Without authentication only on loopback.
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=8080, ge=0, le=65535)
    http_tls_cert: FilePath | None = None
    http_tls_key: FilePath | None = None
    http_auth: bool = True
    # How long a balancer is given to see that this instance is going, before it takes no more.
    http_drain_seconds: float = Field(default=5.0, ge=0, le=600)
    http_requests_max: int = Field(default=1000, ge=1, le=100_000)
    # Intents that may wait to be handed in together.
    http_waiting_max: int = Field(default=10_000, ge=1, le=1_000_000)
    # How long a revoked token may still be good.
    http_token_seconds: float = Field(default=2.0, ge=0.1, le=30)
    # False: this instance takes intents and answers, but submits none.
    execute: bool = True
    log_format: Literal["json", "console"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        pool = self.pool()
        lease_seconds = LEASE_SECONDS if self.lease_seconds is None else self.lease_seconds
        # A call that answers after the lease is gone has renewed nothing, and its holder stood
        # still for as long.
        _require_below("the longest call", pool.call_seconds, lease_seconds)
        _require_below(
            "idle_in_transaction_seconds", self.idle_in_transaction_seconds, lease_seconds
        )
        self._refuse_election()
        return self

    def _refuse_election(self) -> None:
        timings = self.timings()
        if self.elector == "row":
            return
        if self.through_pooler:
            raise ValueError(
                "elector is advisory, but through_pooler is true: an advisory lock needs a session "
                "of its own, which a pooler does not give; elect by the row, or go to the database "
                "itself"
            )
        try:
            timings.require_pings()
        except InvalidArgument as error:
            raise ValueError(str(error)) from None

    def timings(self) -> Timings:
        """Give the part that says how long things may take."""
        try:
            return Timings(
                lease_seconds=self.lease_seconds,
                heartbeat_seconds=self.heartbeat_seconds,
                reaper_seconds=self.reaper_seconds,
                shutdown_seconds=self.shutdown_seconds,
                poll_seconds=self.poll_seconds,
                contracts_seconds=self.contracts_seconds,
                cluster_lease_seconds=self.cluster_lease_seconds,
                cluster_renew_seconds=self.cluster_renew_seconds,
                cluster_acquire_seconds=self.cluster_acquire_seconds,
                cluster_ping_seconds=self.cluster_ping_seconds,
                schedule_refresh_seconds=self.schedule_refresh_seconds,
            )
        except InvalidArgument as error:
            raise ValueError(str(error)) from None

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
                role=self.database_role,
            )
        except InvalidArgument as error:
            raise ValueError(str(error)) from None

    def required_database_url(self) -> str:
        """Give the address, with the TLS settings in it; or say how to give one."""
        if self.database_url is None or not self.database_url.get_secret_value():
            raise InvalidArgument("no database: give --database-url or set LEASEHOLD_DATABASE_URL")
        return with_tls(
            self.database_url.get_secret_value(), self.database_tls, self.database_tls_ca
        )


def read_settings(settings_file: Path | None = None, **given: Any) -> Settings:  # noqa: ANN401 (pydantic checks each)
    """Read the environment; what is `given` and not None goes before it.

    A `settings_file` has lines such as LEASEHOLD_REAPER_SECONDS=5 and comes last: it is for what
    may change while the process runs, and the environment cannot.
    """
    if settings_file is not None and not settings_file.is_file():
        raise InvalidArgument(f"there is no settings file {settings_file}")
    try:
        return Settings(
            _env_file=settings_file,  # pyright: ignore[reportCallIssue]  (pydantic-settings takes it)
            **{name: value for name, value in given.items() if value is not None},
        )
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
