"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import ast
import getpass
import os
import re
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, wraps
from inspect import Parameter, Signature
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast, get_args

import typer
from pydantic import SecretStr

from leasehold import config
from leasehold.cli.output import echo
from leasehold.config import OPERATOR_VARIABLE, Settings, ignored_variables, read_settings
from leasehold.domain.errors import InvalidArgument, LeaseholdError
from leasehold.observe.logs import configure_logs, get_logger
from leasehold.runtime.process import before_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from leasehold.embedded.server import EmbeddedPostgres

# How often a long-running process checks that the server still runs.
CHECK_SECONDS = 2.0

_LOG = get_logger(__name__)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


# No `envvar` here: the settings read the environment, and an option on the command line must win
# over both variables.
DatabaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="postgresql://user@host:port/database, or set LEASEHOLD_DATABASE_URL. Other users of "
        "this machine can see a password that is given here.",
        show_default=False,
    ),
]
ApiUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Use this HTTP API instead of the database: https://leasehold.example.org, or set "
        "LEASEHOLD_API_URL. The token is read from LEASEHOLD_API_TOKEN.",
        show_default=False,
    ),
]
Operator: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Your name for the record, or set LEASEHOLD_OPERATOR.", show_default="your login name"
    ),
]

# The settings that both `leasehold worker` and `leasehold serve` have options for.
INSTANCE_SETTINGS = (
    *("database_url", "embedded", "data_dir", "targets", "app_dir", "observer", "concurrency"),
    *("elector", "standalone", "stream_claim_seconds", "stream_grace_seconds"),
    *("stream_linger_seconds", "start_seconds", "log_format", "log_level"),
)
SettingsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="File with lines such as LEASEHOLD_REAPER_SECONDS=5. SIGHUP reads it again.",
        show_default=False,
    ),
]


@cache
def setting_texts() -> dict[str, str]:
    """Return the text below each setting, for options and for the reference.

    Python does not keep it, so it is read from the file. That takes a tenth of the time that
    pydantic would take for it.
    """
    module = ast.parse(Path(config.__file__).read_text())
    [definition] = [one for one in module.body if getattr(one, "name", "") == Settings.__name__]
    body = cast("ast.ClassDef", definition).body
    return {
        field.target.id: " ".join(str(text.value.value).split()).replace("; None: ", "; not set: ")
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def setting(name: str) -> Any:  # noqa: ANN401 (a type for Typer, made at run time)
    """Return the annotation of the option that overrides a setting, with the setting's text."""
    field = Settings.model_fields[name]
    kinds = [getattr(one, "__origin__", one) for one in get_args(field.annotation)]
    kind = next((one for one in (bool, int, float, Path) if one in (field.annotation, *kinds)), str)
    option = _option_name(name)
    choices = ", ".join(one for one in get_args(field.annotation) if isinstance(one, str))
    default = "" if field.default is None else f" ({_shown(field.default)})"
    return Annotated[
        kind | None,
        typer.Option(
            f"{option}/--no-{option[2:]}" if kind is bool else option,
            help=f"{setting_texts()[name].rstrip('.')}{choices and f': {choices}'}{default}.",
            show_default=False,
        ),
    ]


def takes_settings(
    *names: str,
) -> Callable[[Callable[[Callable[[], Settings], Path | None], None]], Callable[..., None]]:
    """Make a command with an option for each of these settings, and one for a settings file.

    The command gets what reads its settings, each time anew, and the file.
    """
    options = {_option_name(name)[2:].replace("-", "_"): name for name in names}

    def decorate(
        command: Callable[[Callable[[], Settings], Path | None], None],
    ) -> Callable[..., None]:
        @wraps(command)
        def run(settings_file: Path | None = None, **given: object) -> None:
            settings = {options[option]: value for option, value in given.items()}
            command(lambda: read_options(settings_file, **settings), settings_file)

        annotations = {option: setting(name) for option, name in options.items()}
        run.__annotations__ = annotations | {"settings_file": SettingsFile}
        run.__signature__ = Signature(  # pyright: ignore[reportAttributeAccessIssue] (inspect reads it)
            [
                Parameter(option, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
                for option, annotation in run.__annotations__.items()
            ]
        )
        return run

    return decorate


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else f"{default}"


def use_app_dir(folder: Path | None) -> None:
    """Import the functions of Python gateways from a folder, by default the working directory.

    With `python -P` or PYTHONSAFEPATH, the working directory is used only if it is named.
    """
    if folder is None and sys.flags.safe_path:
        return
    path = str((folder or Path()).resolve())
    if path not in sys.path:
        sys.path.insert(0, path)


def read_options(
    settings_file: Path | None = None,
    **given: Any,  # noqa: ANN401 (settings, which pydantic checks)
) -> Settings:
    """Read the settings of a command; errors name the option that a value was given with."""
    return read_settings(settings_file, name_given=_option_name, **given)


def read_command_settings(
    *,
    prefers_api: bool = False,
    migrates: bool = True,
    **given: Any,  # noqa: ANN401 (as above)
) -> Settings:
    """Read the settings of a command that logs nothing; warn of misspelt variables on stderr.

    Starts the embedded database if it is asked for, and the command does not use the API instead.
    Its schema is then current, unless the command itself is about that (`migrates`).
    """
    for name, meant in ignored_variables().items():
        warn(f"{name} is ignored: {ignored_advice(meant)}")
    settings = read_options(**given)
    if settings.embedded and not (prefers_api and settings.api_url):
        return with_embedded_database(settings, migrates=migrates)
    return settings


def warn(text: str) -> None:
    """Print a warning on stderr."""
    echo(f"Warning: {text}", color=typer.colors.YELLOW, err=True)


def ignored_advice(meant: str | None) -> str:
    """Say what to do about a variable that is ignored."""
    return f"it is not a setting; did you mean {meant}?" if meant else "it is not a setting"


def _option_name(setting: str) -> str:
    # The options of `serve` leave out the prefix that its settings share.
    return f"--{setting.removeprefix('http_').replace('_', '-')}"


def operator_name(option: str | None) -> str:
    """Return the name that an intervention is recorded under."""
    name = option or os.environ.get(OPERATOR_VARIABLE)
    if name:
        return name
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user of a container may have no name
        raise InvalidArgument(
            f"your login has no name: use --operator NAME or set {OPERATOR_VARIABLE}"
        ) from None


def parse_duration_or_time(option: str, text: str) -> tuple[float | None, datetime | None]:
    """Parse a duration (90, 90s, 15m, 2h, 1d) or a time (2030-01-31T12:00:00+01:00)."""
    if found := _DURATION.fullmatch(text.strip()):
        return float(found[1]) * _UNIT_SECONDS[found[2] or "s"], None
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidArgument(
            f"{option} {text!r} is not a duration (90, 15m, 2h, 1d) or a time with its time zone "
            "(2030-01-31T12:00:00Z)"
        )
    return None, time


def parse_time_or_age(option: str, text: str) -> datetime:
    """Parse a time, or a duration before now on this machine's clock."""
    seconds, time = parse_duration_or_time(option, text)
    if time is not None:
        return time
    try:
        return datetime.now(UTC) - timedelta(seconds=seconds or 0)
    except OverflowError:
        raise InvalidArgument(
            f"{option} {text!r} is too long ago: use a shorter duration"
        ) from None


@contextmanager
def embedded_database(read: Callable[[], Settings]) -> Generator[Callable[[], Settings]]:
    """Yield `read` with the URL of the embedded database, if the settings ask for it.

    The first process that uses it starts it, and the last one stops it, so several commands can
    share it, however they end. While the block runs, a server that dies is restarted.
    """
    settings = read()
    if not settings.embedded:
        yield read
        return
    configure_logs(settings.log_format, settings.log_level)
    server = _start(settings, lambda step: _LOG.info("embedded_database_progressed", step=step))
    is_over = threading.Event()
    guard = threading.Thread(target=_keep_running, args=(server, is_over), daemon=True)

    def stop() -> None:
        is_over.set()
        if guard.is_alive():
            guard.join()
        server.stop()

    with before_exit(stop):
        _LOG.info(
            "embedded_database_started",
            port=server.port,
            advice="other commands use it with LEASEHOLD_EMBEDDED=true",
        )
        guard.start()
        yield lambda: _with_url(read(), server.url)


def with_embedded_database(settings: Settings, *, migrates: bool = True) -> Settings:
    """Return the settings with the URL of the embedded database, which runs until we exit."""
    return _with_url(settings, _start(settings, None, migrates=migrates).url)


def _start(
    settings: Settings, progress: Callable[[str], None] | None, *, migrates: bool = True
) -> EmbeddedPostgres:
    # Imported late: most processes have a database of their own.
    from leasehold.embedded.server import EmbeddedPostgres
    from leasehold.store.database import database_at

    server = EmbeddedPostgres(settings.data_dir, progress=progress).start()
    try:
        if migrates:
            database_at(server.url).migrate()
    except BaseException:
        server.stop()
        raise
    return server


def _with_url(settings: Settings, url: str) -> Settings:
    """Set the URL. A process with its own database is standalone, unless it was told otherwise."""
    is_chosen = "standalone" in settings.model_fields_set or not settings.execute
    return settings.model_copy(
        update={
            "database_url": SecretStr(url),
            "standalone": settings.standalone if is_chosen else True,
        }
    )


def _keep_running(server: EmbeddedPostgres, is_over: threading.Event) -> None:
    port = server.port
    while not is_over.wait(CHECK_SECONDS):
        try:
            was_running = server.is_running()
            server.ensure_running()
        except LeaseholdError as error:
            _LOG.error("embedded_database_failed", error=str(error))
            continue
        if server.port != port:
            _LOG.error("embedded_database_moved", port=server.port, advice="restart this process")
        elif not was_running:
            _LOG.warning("embedded_database_restarted", port=port)
