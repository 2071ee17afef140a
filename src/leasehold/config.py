"""The settings of a process, read once from the environment (LEASEHOLD_...) and the command line.

Settings that cannot work together are refused, and the error names the broken relation. The
database URL contains a password, so neither this object nor its errors show it.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path  # noqa: TC003 (pydantic reads the annotation)
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    DirectoryPath,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from leasehold.domain.errors import InvalidArgument
from leasehold.domain.terms import in_our_words, matching
from leasehold.domain.timing import LEASE_SECONDS, Timings
from leasehold.store.database import database_at, with_tls
from leasehold.store.pool_settings import PoolSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leasehold.store.database import Database

PREFIX = "LEASEHOLD_"
# Read by the command line alone: the name that interventions are recorded under.
OPERATOR_VARIABLE = "LEASEHOLD_OPERATOR"
# How much a variable must resemble a setting to be taken for it. They share a prefix.
_LIKENESS = 0.85
_OBSERVER = "must be an import path such as package.module:object"
_HOLDER = "must be 1 to 124 letters, digits or signs of ASCII, without spaces"


def _split_targets(value: object) -> object:
    """Split target names at commas; accept a JSON list too. An empty text means all targets."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("is not a valid JSON list; or separate names by commas") from None
    return tuple(name.strip() for name in value.split(",") if name.strip()) or None


class Settings(BaseSettings):
    """The settings of one process. The text below each field is its description."""

    # Without use_attribute_docstrings: it would cost every command 30 ms at start.
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", hide_input_in_errors=True
    )

    database_url: SecretStr | None = None
    """The PostgreSQL address, as a URL or as key=value pairs. Required by everything that runs.
    Other users of the machine can see a password on the command line."""
    embedded: bool = False
    """Use a private PostgreSQL on this machine instead of a URL. It is started if necessary, and
    the instance is standalone unless told otherwise."""
    data_dir: Path | None = None
    """The data folder of the embedded database; None: the default folder of the user."""
    database_tls: Literal["verify-full", "require", "prefer"] | None = None
    """The weakest TLS mode that a database connection may have; None: as the URL says. Only
    verify-full authenticates the server; require only encrypts and is for development."""
    database_tls_ca: str | None = Field(default=None, min_length=1)
    """A file of certificate authorities for database connections, or "system"."""
    database_role: str | None = None
    """The role to use, for a login that is a member of several; None: all inherited roles."""

    api_url: str | None = None
    """The HTTP API, for commands that use it instead of the database."""
    api_token: SecretStr | None = None
    """The token for the HTTP API."""
    api_tls_ca: FilePath | None = None
    """A file of certificate authorities for the HTTP API; None: those of the system."""

    through_pooler: bool = False
    """Set to true behind a transaction pooler such as PgBouncer: it supports neither session
    settings nor prepared statements nor LISTEN."""
    check_on_checkout: bool = False
    """Test each pooled connection before use. Costs a round trip per call; for networks that
    silently drop idle connections."""
    application_name: str = Field(default="leasehold", min_length=1, max_length=63)
    """The application_name of pooled connections, as shown in pg_stat_activity."""
    pool_size_min: int = Field(default=1, ge=0, le=1000)
    """Connections that the pool keeps open while idle."""
    pool_size_max: int = Field(default=10, ge=1, le=1000)
    """The most connections that the pool opens. Their sum over all processes must fit into the
    server's max_connections."""
    pool_waiting_max: int = Field(default=1000, ge=1, le=1_000_000)
    """The most calls that may wait for a connection; further ones fail at once."""
    pool_wait_seconds: float = Field(default=5.0, gt=0, le=3600)
    """How long a call waits for a connection."""
    connect_seconds: int = Field(default=5, ge=2, le=60)
    """How long opening a connection may take."""
    statement_seconds: float = Field(default=5.0, ge=0.1, le=3600)
    """The server's statement_timeout. With the waits above it bounds every database call, which
    must be shorter than a lease."""
    lock_seconds: float = Field(default=3.0, ge=0.1, le=3600)
    """The server's lock_timeout; less than statement_seconds, so that the error names the cause."""
    idle_in_transaction_seconds: float = Field(default=5.0, ge=0.1, le=3600)
    """The server's idle_in_transaction_session_timeout: a stalled process must not hold locks."""

    start_seconds: float = Field(default=60.0, ge=0, le=86400)
    """How long a start waits for a database that is away or does not answer; then it fails. A
    running instance waits for ever."""
    lease_seconds: float | None = Field(default=None, ge=1, le=3600)
    """The longest lease of an item; None: as each contract says. It can only shorten the lease of a
    contract, because the contract's quarantine is based on it."""
    heartbeat_seconds: float = Field(default=5.0, ge=0.05, le=1200)
    """How often claims are renewed; less than a third of the lease, so that two heartbeats may
    fail."""
    reaper_seconds: float = Field(default=10.0, ge=0.1, le=3600)
    """How often the reaper looks for expired claims; less than the lease, so that the work of a
    dead worker waits at most two leases."""
    shutdown_seconds: float = Field(default=20.0, ge=0, le=3600)
    """How long running calls may finish after SIGTERM; at most the lease. The whole stop takes one
    lease at most, so calls end five seconds before."""
    poll_seconds: float = Field(default=1.0, ge=0.05, le=60)
    """How often a worker looks for due work without a notification."""
    contracts_seconds: float = Field(default=5.0, ge=0.1, le=3600)
    """How often contracts are read again: the delay until a published change takes effect."""

    cluster_lease_seconds: float = Field(default=60.0, ge=1, le=86400)
    """The lease of a leader. With the row elector, this is how long a dead leader's work waits."""
    cluster_renew_seconds: float = Field(default=20.0, ge=0.05, le=86400)
    """How often a leader renews its lease row; less than cluster_lease_seconds."""
    cluster_acquire_seconds: float = Field(default=30.0, ge=0.05, le=86400)
    """How often a follower asks for the lease, besides when it sees the lease end."""
    schedule_refresh_seconds: float = Field(default=1.0, ge=0.05, le=3600)
    """How often a leader reads new and changed intents without a notification."""
    stream_claim_seconds: float = Field(default=30.0, ge=1, le=86400)
    """The first expiry of a stream's lease: after that, a stream without a call in flight may be
    taken over. More than three heartbeats, so that two may fail."""
    stream_grace_seconds: float = Field(default=150.0, ge=0, le=86400)
    """How much later the second expiry is: until then, a stream with a call in flight stays with
    its slow holder. 0: a stream has one expiry only."""
    stream_linger_seconds: float = Field(default=86400.0, ge=60, le=315_360_000)
    """How long after its last use the reaper deletes an empty stream; more than both expiries."""
    elector: Literal["row", "advisory"] = "row"
    """How a group elects its leader: by its lease row, or by a session advisory lock, which
    replaces a dead leader within seconds but does not work through a pooler."""
    cluster_ping_seconds: float = Field(default=0.3, ge=0.05, le=3600)
    """How often a leader pings the session that holds its advisory lock. After four missed pings
    it begins no new call."""
    holder_id: Annotated[str, matching(r"[!-~]{1,124}", _HOLDER)] | None = None
    """The name of this instance in leases, claims, logs and the ledger; None: host, process id and
    random digits. Unique among live instances; those that only serve the API add `/api` to it."""
    standalone: bool = False
    """Lead every group from the start, or refuse to start. Uses the lease row."""

    concurrency: int = Field(default=10, ge=1, le=5000)
    """Items in flight in this process, in all scopes and groups together. Each contract limits its
    own target further."""
    targets: Annotated[tuple[str, ...] | None, NoDecode, BeforeValidator(_split_targets)] = None
    """The targets to serve; None: all that have a contract. As text: names separated by commas."""
    app_dir: DirectoryPath | None = None
    """The folder that Python gateways and the observer are imported from, besides installed
    packages; None: the working directory."""
    observer: Annotated[str, matching(r"[\w.]+:[\w.]+", _OBSERVER)] | None = None
    """The object that is told what this instance does, as package.module:object; None: nobody."""
    listen: bool = True
    """Whether to LISTEN for notifications, on one extra connection. Polling is correct without."""
    reaper: bool = True
    """Whether this instance may become the reaper. Refused if no other instance reaps."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """The port for Prometheus metrics; None: not served; 0: any free port."""
    metrics_host: str = "127.0.0.1"
    """The address for metrics. Loopback by default: metrics reveal business activity."""

    http_host: str = "127.0.0.1"
    """The address of `leasehold serve`."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """The port of `leasehold serve`; 0: any free port."""
    http_tls_cert: FilePath | None = None
    """The certificate chain for HTTPS."""
    http_tls_key: FilePath | None = None
    """The private key for HTTPS."""
    http_auth: bool = True
    """Whether requests need a token. Can only be turned off on loopback."""
    http_drain_seconds: float = Field(default=5.0, ge=0, le=600)
    """How long the API still accepts requests after SIGTERM while /readyz fails, so that a load
    balancer notices before connections are refused; at most the lease less five seconds."""
    http_requests_max: int = Field(default=1000, ge=1, le=100_000)
    """The most requests in progress; further ones get 503."""
    http_waiting_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """The most intents that may wait for a group commit; further ones get 503."""
    http_token_seconds: float = Field(default=2.0, ge=0.1, le=30)
    """How long tokens are cached, and so how long a revoked token may still be accepted."""
    execute: bool = True
    """Whether this instance submits intents; false: it only serves the HTTP API."""

    log_format: Literal["json", "console"] = "console"
    """The format of log lines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        lease_seconds = LEASE_SECONDS if self.lease_seconds is None else self.lease_seconds
        if self.idle_in_transaction_seconds >= lease_seconds:
            raise ValueError(
                f"idle_in_transaction_seconds ({self.idle_in_transaction_seconds:g} seconds) must "
                f"be less than lease_seconds ({lease_seconds:g}): a stalled process must not hold "
                "locks for longer than its leases"
            )
        self._refuse_impossible_election()
        if self.embedded and (self._has_database_url() or self.database_tls):
            raise ValueError(
                "embedded cannot be used with database_url or database_tls: it is a private "
                "database on this machine, reached without TLS; leave one of them out"
            )
        return self

    def _refuse_impossible_election(self) -> None:
        timings = self.timings()
        if self.elector == "row":
            return
        if self.through_pooler:
            raise ValueError(
                "elector=advisory does not work with through_pooler: an advisory lock needs its "
                "own database session; use elector=row, or connect to the database directly"
            )
        try:
            timings.require_pings()
        except InvalidArgument as error:
            raise ValueError(str(error)) from None

    @property
    def database_seconds(self) -> float:
        """The longest that a database call can take."""
        return self.pool().call_seconds

    def timings(self) -> Timings:
        """Return the timings, which are the settings of the same names."""
        try:
            return Timings(**{field.name: getattr(self, field.name) for field in fields(Timings)})
        except InvalidArgument as error:
            raise ValueError(str(error)) from None

    def pool(self) -> PoolSettings:
        """Return the settings of the connection pool."""
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

    def _has_database_url(self) -> bool:
        return self.database_url is not None and bool(self.database_url.get_secret_value())

    def required_database_url(self) -> str:
        """Return the database URL with the TLS settings applied, or raise if there is none."""
        if self.database_url is None or not self._has_database_url():
            raise InvalidArgument(
                "no database: give --database-url or set LEASEHOLD_DATABASE_URL; for a private "
                "PostgreSQL on this machine set LEASEHOLD_EMBEDDED=true (`worker` and `serve` also "
                "take --embedded)"
            )
        url = self.database_url.get_secret_value()
        return with_tls(url, self.database_tls, self.database_tls_ca)

    def database(self, on_generation_changed: Callable[[], None] = lambda: None) -> Database:
        """Return the database, which connects when it is opened, or raise if there is none."""
        return database_at(self.required_database_url(), self.pool(), on_generation_changed)


def read_settings(
    settings_file: Path | None = None,
    *,
    name_given: Callable[[str], str] = str,
    **given: Any,  # noqa: ANN401 (pydantic checks each)
) -> Settings:
    """Read the settings. Precedence: `given` values that are not None, environment, file.

    A `settings_file` has lines such as LEASEHOLD_REAPER_SECONDS=5. It is for settings that may
    change while the process runs, which the environment cannot. `name_given` says how errors call
    a given value, such as by its option on the command line.
    """
    if settings_file is not None and not settings_file.is_file():
        raise InvalidArgument(f"the settings file {settings_file} does not exist")
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings(
            _env_file=settings_file,  # pyright: ignore[reportCallIssue]  (a parameter of pydantic-settings)
            **given,
        )
    except ValidationError as error:
        problems: list[str] = []
        for one in error.errors(include_input=False):
            reason = in_our_words(one["msg"])
            name = str(one["loc"][0]) if one["loc"] else ""
            shown = name_given(name) if name in given else f"{PREFIX}{name.upper()}"
            problems.append(f"{shown}: {reason}" if name else reason)
        # Not chained: pydantic's own message would show the given values.
        raise InvalidArgument("; ".join(problems)) from None


def ignored_variables(settings_file: Path | None = None) -> dict[str, str | None]:
    """Return variables that look like settings but are none, each with the nearest setting."""
    names = [*os.environ, *(() if settings_file is None else _names_in(settings_file))]
    known = [OPERATOR_VARIABLE, *(f"{PREFIX}{name.upper()}" for name in Settings.model_fields)]
    # Kubernetes describes a Service called leasehold to every container, in variables like these.
    services = {name.removesuffix("_SERVICE_HOST") for name in names if "_SERVICE_HOST" in name}
    foreign = tuple(f"{service}_{part}" for service in services for part in ("SERVICE_", "PORT"))
    return {
        name: _nearest(name.upper(), known)
        for name in names
        if name.upper().startswith(PREFIX)
        and name.upper() not in known
        and not name.startswith(foreign)
    }


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the setting that was meant: the only one that continues the name, or a similar one."""
    longer = [one for one in known if one.startswith(f"{name}_")]
    similar = get_close_matches(name, known, n=1, cutoff=_LIKENESS)
    return longer[0] if len(longer) == 1 else next(iter(similar), None)


def _names_in(settings_file: Path) -> Iterable[str]:
    from dotenv import dotenv_values  # a settings file is rare

    return dotenv_values(settings_file)
