"""The sandbox as a server, for `leasehold sandbox` and for `async with Sandbox() as sandbox`."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

from aiohttp import web

from leasehold.domain.errors import InvalidArgument
from leasehold.sandbox.faults import Fault, FaultInjector, FaultSettings, read_settings
from leasehold.sandbox.gateways import (
    STREAM_HEADER,
    EffectSummary,
    Reply,
    number,
    reply,
    simulations,
    total,
)
from leasehold.sandbox.request_log import LoggedRequest, RequestLog, RequestLogFull

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from leasehold.sandbox.faults import Drawn

REQUESTS_MAX = 1_000_000

_PAGE_MAX = 10_000
_STOP_SECONDS = 0.1
_FULL = 507


class Sandbox:
    """A gateway of each class: POST /keyed, /fenced, /lookup, /blind; GET /lookup/{key}. And those
    of other kinds, whose modules say their routes.

    `set_faults` says how they misbehave; `effects`, `accepted` and `requests` say exactly what
    happened. All is in memory, except that requests are also appended to the file `log_path`.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int | None = None,
        log_path: Path | None = None,
        requests_max: int = REQUESTS_MAX,
    ) -> None:
        self.url = ""
        self._host, self._port = host, port
        self._seed = seed
        self._simulations = {name: simulate() for name, simulate in simulations.items()}
        self._injectors = {name: FaultInjector(FaultSettings(), seed) for name in self._simulations}
        self._log = RequestLog(requests_max, log_path)
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen. Afterwards `url` is the address."""
        # No router and no middleware: they would take half of a small request's time.
        self._runner = web.ServerRunner(
            web.Server(self._handle, access_log=None), shutdown_timeout=_STOP_SECONDS
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port, backlog=1024).start()
        except OSError as error:
            await self._runner.cleanup()
            raise InvalidArgument(
                f"cannot listen on {self._host}:{self._port} ({error.strerror}): "
                "choose another --port, or 0 for a free one"
            ) from error
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop at once. Requests in progress are cut off."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._log.close()

    def set_faults(self, *gateways: str, seed: int | None = None, **settings: float) -> None:
        """Replace the fault settings of these gateways, or of all. Omitted settings are reset."""
        self._replace_injectors(
            gateways or self._simulations, FaultSettings.model_validate(settings), seed
        )

    def effects(self, gateway: str | None = None) -> EffectSummary:
        """Count the effects at one gateway, or at all."""
        if gateway is not None:
            return self._simulations[gateway].effects.summary()
        return total(one.effects.summary() for one in self._simulations.values())

    def effect_counts(self, gateway: str) -> Mapping[str, int]:
        """Count the effects per key."""
        return self._simulations[gateway].effects.counts

    def accepted(self) -> Mapping[str, Sequence[str]]:
        """Return by stream the keys or batch ids that had an effect, in that order."""
        return self._log.accepted()

    def requests(self, after: int = 0, limit: int = _PAGE_MAX) -> Sequence[LoggedRequest]:
        """Return the logged requests, in the order in which they took effect."""
        return self._log.after(after, limit)

    def _replace_injectors(
        self, gateways: Iterable[str], settings: FaultSettings, seed: int | None
    ) -> None:
        for name in gateways:
            self._injectors[name] = FaultInjector(settings, self._seed if seed is None else seed)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        first, _, rest = request.path.lstrip("/").partition("/")
        try:
            simulation = self._simulations.get(first)
            kind = None if simulation is None else simulation.route(request.method, rest)
            if kind == "submission":
                return await self._submit(request, first)
            if kind == "lookup":
                return self._look_up(request, first, rest)
            return await self._control(request)
        except RequestLogFull:
            reason = f"the log is full ({self._log.requests_max} requests): start a new sandbox"
            return _response(reply(_FULL, reason=reason))

    async def _submit(self, request: web.BaseRequest, gateway: str) -> web.StreamResponse:
        received_at = time.time()
        body = await request.read()
        injector = self._injectors[gateway]
        drawn = injector.draw()
        if drawn.wait_seconds:
            await asyncio.sleep(drawn.wait_seconds)
        answer = self._apply(request, body, gateway, drawn, received_at)
        if answer is None:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=_FULL)
        return _response(answer, retry_after=injector.settings.retry_after_seconds)

    def _apply(
        self,
        request: web.BaseRequest,
        body: bytes,
        gateway: str,
        drawn: Drawn,
        received_at: float,
    ) -> Reply | None:
        """Apply the effect and log the request, in one step. None: send no response."""
        headers, simulation = request.headers, self._simulations[gateway]
        injector = self._injectors[gateway]
        entries = simulation.entries(headers, body)
        self._log.require_room(2 * len(entries))
        is_lost = drawn.fault in {Fault.REQUEST_LOST, Fault.RESPONSE_LOST}
        first: Reply | None = None
        for is_duplicate in (False, True) if drawn.is_duplicated else (False,):
            answer, answers = simulation.submit(headers, body, drawn.fault, injector, self.url)
            remark = "duplicate" if is_duplicate else "late" if drawn.is_late else ""
            for entry, of_entry in zip(entries, answers, strict=False):
                self._log.append(
                    LoggedRequest(
                        number=len(self._log) + 1,
                        received_at=received_at,
                        gateway=gateway,
                        kind="submission",
                        key=entry.key,
                        fencing_token=entry.fencing_token,
                        attempt_no=entry.attempt_no,
                        status=None if is_lost else of_entry.status,
                        had_effect=of_entry.had_effect,
                        remark=remark or of_entry.remark,
                        stream=unquote(headers.get(STREAM_HEADER, "")),
                    )
                )
            first = first or (None if is_lost else answer)
        return first

    def _look_up(self, request: web.BaseRequest, gateway: str, rest: str) -> web.Response:
        """Answer one lookup. The log has an entry for each key of it."""
        simulation = self._simulations[gateway]
        keys = simulation.looked_up(rest, request.query)
        self._log.require_room(len(keys))
        answer = simulation.look_up(keys, self._injectors[gateway], self.url)
        received_at = time.time()  # the same for all, which shows that they came together
        for key in keys:
            self._log.append(
                LoggedRequest(
                    number=len(self._log) + 1,
                    received_at=received_at,
                    gateway=gateway,
                    kind="lookup",
                    key=key,
                    status=answer.status,
                    remark=answer.remark,
                )
            )
        return _response(answer)

    async def _control(self, request: web.BaseRequest) -> web.Response:
        match request.method, request.path:
            case "GET", "/requests":
                return self._requests_page(request)
            case "GET", "/effects":
                return _json(self._effects_page())
            case "GET", "/faults":
                return _json(
                    {name: one.settings.model_dump() for name, one in self._injectors.items()}
                )
            case "PUT", "/faults":
                return await self._put_faults(request)
            case _:
                return _response(reply(404, reason=f"no route {request.method} {request.path}"))

    def _requests_page(self, request: web.BaseRequest) -> web.Response:
        after = number(request.query.get("after", "0"))
        limit = number(request.query.get("limit", str(_PAGE_MAX)))
        if after is None or limit is None or not 1 <= limit <= _PAGE_MAX:
            return _response(
                reply(400, reason=f"after must be a number, and limit 1 to {_PAGE_MAX}")
            )
        requests = [one.as_json() for one in self._log.after(after, limit)]
        return _json({"requests": requests, "total": len(self._log)})

    def _effects_page(self) -> dict[str, Any]:
        page = asdict(self.effects())
        del page["doubled"]  # named per gateway
        each = {name: asdict(one.effects.summary()) for name, one in self._simulations.items()}
        return {**page, "gateways": each}

    async def _put_faults(self, request: web.BaseRequest) -> web.Response:
        gateway = request.query.get("gateway")
        if gateway is not None and gateway not in self._simulations:
            names = ", ".join(self._simulations)
            return _response(reply(400, reason=f"gateway must be one of {names}"))
        try:
            settings, seed = read_settings(await request.read())
        except InvalidArgument as error:
            return _response(reply(400, reason=str(error)))
        self._replace_injectors(
            self._simulations if gateway is None else (gateway,), settings, seed
        )
        return _json(settings.model_dump())


def _response(answer: Reply, *, retry_after: float = 0) -> web.Response:
    headers = {"Content-Type": "application/json"}
    if answer.status in {429, 503}:
        headers["Retry-After"] = f"{retry_after:.15g}"
    return web.Response(status=answer.status, body=answer.body, headers=headers)


def _json(value: object) -> web.Response:
    return _response(Reply(200, json.dumps(value).encode()))
