"""Requests for shapes, of clients that may have them (`Door`): admitted, understood, answered.

Whatever goes wrong inside is told as an internal error, in the log by its kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any

import structlog

from penstock.core.errors import PenstockError
from penstock.core.offset import LogOffset
from penstock.logs import log_unexpected
from penstock.shapes.definition import DefinitionError, ShapeDefinition
from penstock.shapes.http import answers
from penstock.shapes.http.admission import Admission, RequestKind
from penstock.shapes.http.asked import Asked, OutOfBoundsError, RefetchError
from penstock.shapes.http.bodies import Bodies
from penstock.shapes.http.compression import accepted
from penstock.shapes.http.definitions import Definitions
from penstock.shapes.http.fields import BodyError, Fields, parse_query, with_body
from penstock.shapes.http.log_serving import is_within
from penstock.shapes.http.longpoll import Deliver, Poll
from penstock.shapes.http.message import Answer, HttpRequest
from penstock.shapes.http.request import RequestError, ShapeRequest, parse_delete, parse_request
from penstock.shapes.http.serving import ShapeServing
from penstock.shapes.http.subsets import SubsetServing
from penstock.shapes.settings import ShapeSettings
from penstock.shapes.shape import ApiStatus, ShapeApi, SnapshotProblem
from penstock.shapes.source.catalog import Catalog
from penstock.shapes.source.subset import SubsetError, SubsetReader

_logger = structlog.get_logger("penstock.shapes")
_READY_CHECK_S = 0.05
_BODY_BYTES_IN_LOOP_MAX = 16 * 1024  # larger ones are understood in a thread: others wait for the loop
_MISMATCH = (
    "The specified shape definition and handle do not match. Please ensure the shape definition is correct "
    "or omit the shape handle from the request to obtain a new one."
)
_NO_DATABASE = "Cannot connect to the database to verify the table. Please try again later."


def create_app(api: ShapeApi, catalog: Catalog, subsets: SubsetReader, settings: ShapeSettings) -> App:
    return App(api, catalog, subsets, settings)


class App:
    def __init__(
        self, api: ShapeApi, catalog: Catalog, subsets: SubsetReader, settings: ShapeSettings
    ) -> None:
        self._api = api
        self._settings = settings
        self._bodies = Bodies()
        self._definitions = Definitions(catalog)
        limits = settings.max_concurrent_requests
        self.admission = Admission(limits.initial, limits.existing)
        self._serving = ShapeServing(api, self._bodies, self.admission, settings)
        self._logs = self._serving.logs
        self._subsets = SubsetServing(api, subsets, self._serving, self._definitions)

    @property
    def status(self) -> ApiStatus:
        return self._api.status

    @property
    def waiting(self) -> int:
        """Live requests without news."""
        return self._logs.polls.waiting

    def close(self) -> None:
        """Answer whoever waits, and read no more."""
        self._logs.polls.close()
        self._bodies.close()
        self._definitions.close()

    def reply(
        self, request: HttpRequest, fields: Fields, deliver: Deliver
    ) -> Answer | Poll | Coroutine[Any, Any, Answer]:
        """As `Door.reply`. `fields`: of its query."""
        if request.method == "DELETE":
            return self._guarded(self._delete(fields))
        if request.method != "POST":
            poll = self._waiting_poll(request, deliver)
            if poll is not None:
                return poll
        return self._guarded(self._shape(request, fields))

    def cancel(self, poll: Poll) -> None:
        """Its client is gone."""
        if not poll.is_over:
            self._logs.polls.cancel(poll)
            self.admission.leave("existing")

    async def _guarded(self, answering: Coroutine[Any, Any, Answer]) -> Answer:
        """Whatever is raised, as an answer."""
        try:
            return await answering
        except (RequestError, DefinitionError) as error:
            return answers.invalid(error.errors)
        except SubsetError as error:
            return answers.invalid({"subset": error.errors})
        except BodyError as error:
            return answers.failure(400, error.answer)
        except RefetchError as error:
            return answers.must_refetch(error.handle)
        except OutOfBoundsError:
            return answers.out_of_bounds()
        except SnapshotProblem as problem:
            return answers.of_problem(problem)
        except PenstockError as error:
            _logger.warning("a shape request could not be answered", code=error.code)
            return answers.failure(503, {"message": _NO_DATABASE}, retry_after_s=1, known=True)
        except Exception as error:
            return failed(error)

    # Shapes.

    def _waiting_poll(self, request: HttpRequest, deliver: Deliver) -> Poll | None:
        """A live request that has all there is, of a known shape and definition: it can only wait."""
        try:
            wanted = _parsed(request.query)
        except RequestError:
            return None
        if not wanted.live or wanted.sse or wanted.subset or wanted.compaction or wanted.handle is None:
            return None
        if self._api.status == "starting":
            return None
        definition = self._definitions.known(wanted.definition)
        shape = None if definition is None else self._serving.lookup.with_handle(wanted.handle, definition)
        start = wanted.offset
        assert isinstance(start, LogOffset), "a live request with a handle has an offset"
        if shape is None or definition is None or (start.tx == 0 and start != LogOffset.LAST_BEFORE_REAL):
            return None
        lsn, last = self._api.global_last_seen_lsn, shape.last_offset
        if last > start or not is_within(shape, start, lsn):
            return None
        if not self.admission.enter("existing"):
            return None
        asked = self._asked(request, wanted, definition)
        return self._logs.poll(asked, shape, start, deliver, is_counted=True)

    async def _shape(self, request: HttpRequest, fields: Fields) -> Answer:
        kind: RequestKind = "initial" if _text_of(fields, "offset") in ("-1", "now") else "existing"
        if not self.admission.enter(kind):
            return answers.too_many(kind, self.admission.limits[kind])
        try:
            answer = await self._admitted(request, fields)
        except BaseException:
            self.admission.leave(kind)
            raise
        self.admission.leave_after(answer, kind)
        return answer

    async def _admitted(self, request: HttpRequest, fields: Fields) -> Answer:
        if request.method == "POST":
            body = b"" if request.body is None else request.body.take()
            if len(body) > _BODY_BYTES_IN_LOOP_MAX:
                wanted = await self._definitions.off_loop(lambda: parse_request(with_body(fields, body)))
            else:
                wanted = parse_request(with_body(fields, body))
        else:
            wanted = _parsed(request.query)
        await self._ready()
        definition = await self._definitions.define(wanted.definition)
        check_compaction(wanted, definition)
        asked = self._asked(request, wanted, definition)
        if wanted.subset is not None:
            return await self._subsets.serve(asked, wanted.subset)
        return await self._serving.serve(asked)

    def _asked(self, request: HttpRequest, wanted: ShapeRequest, definition: ShapeDefinition) -> Asked:
        return Asked(
            wanted,
            definition,
            post=request.method == "POST",
            encoding=accepted(request.headers.get(b"accept-encoding", b"")),
            if_none_match=request.headers.get(b"if-none-match"),
        )

    async def _ready(self) -> None:
        if self._api.status != "starting":
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.ready_timeout.total_seconds()
        while self._api.status == "starting":
            if loop.time() > end:
                raise SnapshotProblem(503, "Timeout waiting for the service to be ready", 5)
            await asyncio.sleep(_READY_CHECK_S)

    async def _delete(self, fields: Fields) -> Answer:
        if not self._settings.allow_shape_deletion:
            return answers.failure(405, {"message": "DELETE not allowed"})
        wanted = parse_delete(fields)
        await self._ready()
        shape = None if wanted.handle is None else self._api.find(wanted.handle)
        if shape is not None and shape.hidden:
            shape = None
        if wanted.definition is not None:
            definition = await self._definitions.define(wanted.definition)
            right = self._api.existing(definition)
            if wanted.handle is not None and right is not shape:
                return answers.failure(400, {"message": _MISMATCH})
            shape = right
        if shape is None:
            return answers.failure(404, {"message": "No existing shape found"})
        await self._api.drop(shape, "deleted by a client")
        return answers.accepted()


def failed(error: Exception) -> Answer:
    """What must not happen; the log says where, without values."""
    log_unexpected("a shape request", error)
    return answers.internal_error()


def check_compaction(wanted: ShapeRequest, definition: ShapeDefinition) -> None:
    if wanted.compaction and definition.has_subqueries:
        message = "can't be enabled for shapes with subqueries"
        raise RequestError({"experimental_compaction": [message]})


@lru_cache(maxsize=4096)
def _parsed_once(query: bytes) -> ShapeRequest:
    return parse_request(parse_query(query))


def _parsed(query: bytes) -> ShapeRequest:
    return _parsed_once(query) if len(query) <= 2048 else parse_request(parse_query(query))


def _text_of(fields: Fields, name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None
