"""The sandbox as a server, for `leasehold sandbox` and for `async with Sandbox() as sandbox`."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, Self, cast, get_args

from aiohttp import web
from pydantic import ValidationError

from leasehold.domain.contract import Guarantee
from leasehold.domain.errors import InvalidArgument
from leasehold.sandbox.book import Book, Effects, Reply, reply, summed
from leasehold.sandbox.dial import Chance, Dial, Fate
from leasehold.sandbox.record import Record, RecordFull

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from leasehold.sandbox.dial import Draw
    from leasehold.sandbox.record import Entry

GATEWAYS: tuple[Guarantee, ...] = get_args(Guarantee)
RECORD_ENTRIES_MAX = 1_000_000

_PAGE_MAX = 10_000
_STOP_SECONDS = 0.1
_FULL = 507


class Sandbox:
    """A gateway of each class: POST /keyed, /fenced, /lookup, /blind; GET /lookup/{key}.

    `dial` turns how badly they behave, `effects` and `record` say exactly what happened. Nothing
    survives it but the file at `record_path`, where one is given.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        seed: int | None = None,
        record_path: Path | None = None,
        record_entries_max: int = RECORD_ENTRIES_MAX,
    ) -> None:
        self.url = ""
        self._host, self._port = host, port
        self._seed = seed
        self._books: Mapping[Guarantee, Book] = {name: Book(name) for name in GATEWAYS}
        self._chances = {name: Chance(Dial(), seed) for name in GATEWAYS}
        self._record = Record(record_entries_max, record_path)
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; afterwards `url` says where."""
        # No router and no middleware: half of a small request's time would be theirs.
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
        """Stop at once; what is still being answered is cut off."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._record.close()

    def dial(self, *gateways: Guarantee, seed: int | None = None, **settings: float) -> None:
        """Turn the dial of these gateways, or of all; what is not given is 0 again."""
        self._turn(gateways or GATEWAYS, Dial.model_validate(settings), seed)

    def effects(self, gateway: Guarantee | None = None) -> Effects:
        """Sum up what happened at one gateway, or at all."""
        books = self._books.values() if gateway is None else [self._books[gateway]]
        each = [book.effects() for book in books]
        return Effects(
            keys=sum(one.keys for one in each),
            effects=sum(one.effects for one in each),
            doubled_keys=sum(one.doubled_keys for one in each),
            doubled=tuple(key for one in each for key in one.doubled),
        )

    def effect_counts(self, gateway: Guarantee) -> Mapping[str, int]:
        """Count the effects per key."""
        return self._books[gateway].effect_counts

    def record(self, after: int = 0, limit: int = _PAGE_MAX) -> Sequence[Entry]:
        """Read the record, in the order in which things happened."""
        return self._record.after(after, limit)

    def _turn(self, gateways: Sequence[Guarantee], dial: Dial, seed: int | None) -> None:
        for name in gateways:
            self._chances[name] = Chance(dial, self._seed if seed is None else seed)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        first, _, rest = request.path.lstrip("/").partition("/")
        try:
            if first in GATEWAYS:
                if request.method == "POST" and not rest:
                    return await self._submission(request, first)
                if request.method == "GET" and rest and first != "blind":
                    return self._lookup(first, rest)
            return await self._question(request)
        except RecordFull:
            said = f"the record is full ({self._record.entries_max} entries): start a new sandbox"
            return _response(reply(_FULL, reason=said))

    async def _submission(self, request: web.BaseRequest, gateway: Guarantee) -> web.StreamResponse:
        received_at = time.time()
        await request.read()
        draw = self._chances[gateway].draw()
        if draw.wait_seconds:
            await asyncio.sleep(draw.wait_seconds)
        answer = self._settle(request, gateway, draw, received_at)
        if answer is None:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=_FULL)
        return _response(answer, retry_after=self._chances[gateway].dial.retry_after_seconds)

    def _settle(
        self, request: web.BaseRequest, gateway: Guarantee, draw: Draw, received_at: float
    ) -> Reply | None:
        """Have the effect and write the entry, in one step; None: it goes unanswered."""
        self._record.require_room(2)
        key = request.headers.get("Idempotency-Key", "")
        fence = _number(request.headers.get("Fencing-Token"))
        first: Reply | None = None
        for is_duplicate in (False, True) if draw.is_doubled else (False,):
            answer = self._judge(gateway, key, fence, draw.fate)
            is_lost = draw.fate in {Fate.REQUEST_LOST, Fate.RESPONSE_LOST}
            self._record.append(
                received_at=received_at,
                gateway=gateway,
                kind="submission",
                key=key,
                fence=fence,
                attempt=_number(request.headers.get("Leasehold-Attempt")),
                answer=None if is_lost else answer.status,
                had_effect=answer.had_effect,
                remark="duplicate" if is_duplicate else "late" if draw.is_late else "",
            )
            first = first or (None if is_lost else answer)
        return first

    def _judge(self, gateway: Guarantee, key: str, fence: int | None, fate: Fate) -> Reply:
        if not key:
            return reply(400, reason="the header Idempotency-Key is missing")
        match fate:
            case Fate.REFUSED:
                return reply(503, reason="refused by the sandbox")
            case Fate.THROTTLED:
                return reply(429, reason="throttled by the sandbox")
            case Fate.REQUEST_LOST:
                return reply(_FULL)
            case Fate.ANSWERED | Fate.REJECTED | Fate.RESPONSE_LOST:
                return self._books[gateway].submit(
                    key,
                    fence,
                    is_rejected=fate is Fate.REJECTED,
                    now=time.monotonic(),
                    pending_seconds=self._chances[gateway].dial.pending_seconds,
                )

    def _lookup(self, gateway: Guarantee, key: str) -> web.Response:
        answer = self._books[gateway].look_up(key, time.monotonic())
        is_early = answer.status == 200 and self._chances[gateway].is_early_not_found()
        if is_early:
            answer = reply(404, status="not_found")
        self._record.append(
            received_at=time.time(),
            gateway=gateway,
            kind="lookup",
            key=key,
            fence=None,
            attempt=None,
            answer=answer.status,
            had_effect=False,
            remark="early" if is_early else "",
        )
        return _response(answer)

    async def _question(self, request: web.BaseRequest) -> web.Response:
        match request.method, request.path:
            case "GET", "/record":
                return self._record_page(request)
            case "GET", "/effects":
                return _json(summed(self._books))
            case "GET", "/dial":
                return _json({name: one.dial.model_dump() for name, one in self._chances.items()})
            case "PUT", "/dial":
                return await self._put_dial(request)
            case _:
                return _response(reply(404, reason=f"no {request.method} {request.path} here"))

    def _record_page(self, request: web.BaseRequest) -> web.Response:
        after = _number(request.query.get("after", "0"))
        limit = _number(request.query.get("limit", str(_PAGE_MAX)))
        if after is None or limit is None or not 1 <= limit <= _PAGE_MAX:
            return _response(reply(400, reason=f"after is a number, limit is 1 to {_PAGE_MAX}"))
        entries = [entry.as_json() for entry in self._record.after(after, limit)]
        return _json({"entries": entries, "total": len(self._record)})

    async def _put_dial(self, request: web.BaseRequest) -> web.Response:
        gateway = request.query.get("gateway")
        if gateway is not None and gateway not in GATEWAYS:
            return _response(reply(400, reason=f"gateway is one of {', '.join(GATEWAYS)}"))
        try:
            given: Any = json.loads(await request.read())
            if not isinstance(given, dict):
                return _response(reply(400, reason="a dial is a JSON object"))
            settings = cast("dict[str, Any]", given)
            seed = settings.pop("seed", None)
            dial = Dial.model_validate(settings)
        except ValidationError as error:
            return _response(reply(400, reason=_told(error)))
        except ValueError:
            return _response(reply(400, reason="the body is not JSON"))
        if seed is not None and not isinstance(seed, int):
            return _response(reply(400, reason="seed is a whole number"))
        self._turn(GATEWAYS if gateway is None else (gateway,), dial, seed)
        return _json(dial.model_dump())


def _response(answer: Reply, *, retry_after: float = 0) -> web.Response:
    headers = {"Content-Type": "application/json"}
    if answer.status in {429, 503}:
        headers["Retry-After"] = f"{retry_after:g}"
    return web.Response(status=answer.status, body=answer.body, headers=headers)


def _json(value: object) -> web.Response:
    return _response(Reply(200, json.dumps(value).encode()))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _told(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ")
        for one in error.errors(include_input=False, include_url=False)
    )
