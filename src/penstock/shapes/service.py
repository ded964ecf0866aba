"""The live lane as a process: the lane (`lane`), HTTP in the main thread's loop, the supervisor's channel.

It ends when the supervisor asks for it, or when a part of it has failed: nothing is to go on without the
others, and the supervisor starts it again. If another instance that shares the directory leads, it lets go of
it and waits (`storage.place`); the one that leads does not wait for that for longer than `_TAKE_AFTER_S`. The
port is listened on all the while: whoever asks is told that there are no shapes here now, and health is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
import uvloop

from penstock import logs
from penstock.capture.remote import RemoteCapture
from penstock.channel import Channel
from penstock.core.errors import AddressError, CaptureAwayError, SourceBusyError, told_of
from penstock.core.position import Lsn
from penstock.shapes.admin import serve_admin
from penstock.shapes.api import LiveShapes
from penstock.shapes.engine.lane import ShapeLane
from penstock.shapes.http.app import App, create_app
from penstock.shapes.http.door import Door
from penstock.shapes.http.server import Served, serve
from penstock.shapes.settings import SHAPES_LANE, ShapeSettings
from penstock.shapes.shape import Shape
from penstock.shapes.source.subset import SubsetReader
from penstock.shapes.storage import place
from penstock.sources.postgres import copy_binary

_METRICS_EVERY_S = 1.0
_LOOK_EVERY_S = 0.2
_TAKE_AFTER_S = 10.0
_CLAIM_EVERY_S = 3.0  # another one that waits may have come first
_LET_GO_S = 2.0  # so that who leads has the shapes before we look again
_logger = structlog.get_logger("penstock.shapes")


class ShapeService:
    def __init__(self, channel: Channel, settings: ShapeSettings, capture: RemoteCapture, log: Path) -> None:
        self._channel = channel
        self._settings = settings
        self._capture = capture
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._error: BaseException | None = None

    async def run(self, door: Door, server: Served, admin: Path | None) -> None:
        """Until the end is asked for; an error if it must end before."""
        self._channel.on_stop(lambda: self._in_loop(self._ended.set))
        self._lane = await asyncio.to_thread(self._opened)  # the door answers meanwhile
        self._api = LiveShapes(self._lane.engine)
        self._lane.start()
        engine = self._lane.engine
        subsets = SubsetReader(
            self._lane.pools.queries, self._settings, engine.on_new_version, engine.subqueries.headers
        )
        app = create_app(self._api, self._lane.catalog, subsets, self._settings)
        try:
            async with contextlib.AsyncExitStack() as served:
                door.open(app)
                served.push_async_callback(self._leave, door, server)
                if admin is not None:
                    await served.enter_async_context(await serve_admin(admin, self._api, self._lane.want))
                self._channel.note(f"Shapes are served at port {server.port}.")
                telling = asyncio.create_task(self._tell(app))
                await self._ended.wait()
                telling.cancel()
                self._channel.state("stopping")
        finally:
            await asyncio.to_thread(self._lane.close)
        if self._error is not None:
            raise self._error

    def _opened(self) -> ShapeLane:
        """With the shapes that were there before: as many files are read as there are shapes."""
        return ShapeLane(self._settings, self._capture, self._log, self._wake, self._followed, self._failed)

    async def _leave(self, door: Door, server: Served) -> None:
        """If the shapes are another instance's, the process goes on without them, and listens on."""
        if isinstance(self._error, SourceBusyError):
            door.status = "waiting"
            await server.shut_door()
        else:
            await server.close()

    async def _tell(self, app: App) -> None:
        engine = self._lane.engine
        while True:
            samples = await asyncio.to_thread(lambda: engine.samples(waiting=app.waiting))
            self._channel.metrics(samples)
            await asyncio.sleep(_METRICS_EVERY_S)

    def _wake(self, shapes: list[Shape]) -> None:
        def wake() -> None:
            for shape in shapes:
                shape.wake()

        self._in_loop(wake)

    def _followed(self, follows: bool, reason: str) -> None:
        self._api.status = "active" if follows else "waiting"
        self._channel.state("running" if follows else "waiting", reason)

    def _failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self._in_loop(self._ended.set)

    def _in_loop(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)


def wait_for_place(channel: Channel, door: Door, directory: Path, capture: RemoteCapture) -> bool:
    """Whether the shapes there are ours to open; False if the end was asked for before they were.

    An instance that stands by for another may share its directory, and a predecessor may still be ending.
    """
    began = claimed = None
    while place.is_held(directory):
        door.status = "waiting"
        channel.state("waiting", "another process has these shapes open")
        epoch, now = _led_epoch(capture), time.monotonic()
        if epoch is None:
            began = claimed = None
        elif began is not None and now - began > _TAKE_AFTER_S and place.claim(directory, epoch):
            _logger.warning("the shapes are taken over from a process that does not answer")
            place.take(directory)
        elif claimed is None or now - claimed > _CLAIM_EVERY_S:
            claimed = now if place.claim(directory, epoch) else None
            began = None if claimed is None else began or now
        if channel.stop_asked.wait(_LET_GO_S if epoch is None else _LOOK_EVERY_S):
            return False
    door.status = "starting"
    return True


def _led_epoch(capture: RemoteCapture) -> Lsn | None:
    """Of the term that this instance leads in, if it does."""
    try:
        hello = capture.hello()
    except CaptureAwayError:
        return None
    return hello.epoch if hello.leading else None


async def _serve(channel: Channel, settings: ShapeSettings) -> None:
    where, admin = channel.spec["capture"], channel.spec.get("admin")
    door = Door(settings)
    with RemoteCapture(
        where["address"], SHAPES_LANE, where.get("token"), where.get("certificate")
    ) as capture:

        async def has_place() -> bool:
            return await asyncio.to_thread(wait_for_place, channel, door, settings.directory, capture)

        server = await listen(door, settings, has_place)
        if server is None:
            return
        try:
            while await has_place():
                service = ShapeService(channel, settings, capture, Path(channel.spec["log"]))
                try:
                    await service.run(door, server, None if admin is None else Path(admin))
                    break
                except SourceBusyError as error:
                    _logger.warning("the shapes are let go of", reason=error.message)
                    await asyncio.to_thread(channel.stop_asked.wait, _LET_GO_S)
        finally:
            await server.close()


async def listen(
    door: Door, settings: ShapeSettings, has_place: Callable[[], Awaitable[bool]]
) -> Served | None:
    """None: the end was asked for before. A predecessor that is still ending has both our shapes and our
    port; whoever has the port alone is somebody else, and stays."""
    try:
        return await serve(door, settings.host, settings.port)
    except AddressError:
        if not place.is_held(settings.directory):
            raise
    return await serve(door, settings.host, settings.port) if await has_place() else None


def run(channel: Channel) -> int:
    """The process's exit code."""
    try:
        settings = ShapeSettings.from_json(channel.spec["settings"])
        copy_binary.warm_up()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(channel, settings))
    except Exception as error:
        logs.log_unexpected("the live lane", error)
        told = told_of("the live lane", error)
        channel.failed(told.to_json())
        return told.exit_code
    return 0
