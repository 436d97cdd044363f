"""The service in one process: HTTP on an event loop, the engine in a thread beside it.  No Ray is
imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from teal.app.warm_up import all_tasks, missing
from teal.errors import InputError
from teal.serving.engine.kernels import Kernels
from teal.serving.engine.log import LOG, log_to
from teal.serving.engine.pauses import pauses
from teal.serving.engine.solver import Solver
from teal.serving.http.app import make_app
from teal.serving.settings import ServeConfig
from teal.serving.start import address_of, answers, app_settings, prepared, solver_settings
from teal.solvers.pdhg import MAX_LANES

MAX_HEAD_BYTES = 64 << 10  # of the request line and headers of a request
# seconds in which a client must read LEAST_READ bytes of its answer, or all that is left of it
WRITE_S = 30.0
LEAST_READ = 64 << 10
# seconds in which a connection must send the whole head of its next request, from its first byte on
HEAD_S = 10.0


def limited(most: int, most_of_all: int = 1 << 20) -> type[asyncio.Protocol]:
    """Uvicorn's protocol, which closes a connection where its address has more than ``most``, or
    its head is not right.

    A head is the request line and headers; it must arrive within HEAD_S seconds and MAX_HEAD_BYTES
    bytes.  An answer must be read: what nobody reads is kept in memory, also after the connection
    was closed on this side.

    Args:
        most: connections of one address.
        most_of_all: connections of all addresses; with fewer than there are files, some are left
            for the state folder.
    """
    counts: Counter[str] = Counter()
    base: Any = AutoHTTPProtocol

    class Limited(base):
        """A server whose connections are limited (:func:`limited`)."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            self._address = str((transport.get_extra_info("peername") or ("",))[0])
            self._waiting: asyncio.TimerHandle | None = None
            self._head_bytes = 0
            counts[self._address] += 1
            super().connection_made(transport)
            self._look_later(None, 0)
            if counts[self._address] > most or counts.total() > most_of_all:
                transport.abort()
            else:
                self._wait_for_head(transport)

        def _look_later(self, cycle: Any, left: int) -> None:
            self._reading = asyncio.get_running_loop().call_later(
                WRITE_S, self._look_at_reading, cycle, left
            )

        def _look_at_reading(self, cycle: Any, left: int) -> None:
            """Give the connection up if ``left`` bytes of an answer were waiting before, and have
            not become fewer.
            """
            waiting = self.transport.get_write_buffer_size()
            if left and cycle is self.cycle and waiting > max(0, left - LEAST_READ):
                self.transport.abort()
            self._look_later(self.cycle, waiting)

        def data_received(self, data: bytes) -> None:
            if self._waiting is not None or self.cycle is None or self.cycle.response_complete:
                # A part may hold the end of a head and much of a body: what counts is how long the
                # head goes on.
                end = data.find(b"\r\n\r\n")
                self._head_bytes += len(data) if end < 0 else end
                if self._head_bytes > MAX_HEAD_BYTES:
                    self.transport.abort()
                    return
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()
                self._head_bytes = 0
            elif self._waiting is None:
                self._wait_for_head(self.transport)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            self._reading.cancel()
            counts[self._address] -= 1
            if not counts[self._address]:
                del counts[self._address]
            super().connection_lost(exc)

        def _wait_for_head(self, transport: asyncio.Transport) -> None:
            self._waiting = asyncio.get_running_loop().call_later(HEAD_S, transport.abort)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return Limited


def allow_many_files() -> int:
    """Let this process have as many files and connections open as the system permits; how many."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


# that the event loop waits for its turn beside a thread that computes in Python; 0.005 by default
_SWITCH_S = 0.001
_M_ARENA_MAX = -8  # of mallopt(3)
_MOST_ARENAS = 2  # of glibc's allocator: of one per thread each keeps what its thread once needed


def limit_arenas() -> None:
    """Let all threads of this process allocate from the same few heaps, where the C library is
    glibc.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _MOST_ARENAS)


def collect_seldom() -> None:
    """Leave the objects of the libraries out of garbage collection, and collect less often.

    A collection stops all threads until every object that is looked at has been visited: a tenth of
    a second for those of the libraries, or for the parts of a large body.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)


_COLLECT_AFTER = 50_000  # objects that were made and are still there; 700 by default
_LONGEST_DEADLINE_S = 620  # seconds that requests in flight have when the service is told to stop
_LOOK_EVERY_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0  # between two attempts to prepare the kernels
_PARTS_EVERY_S = 0.5  # between two looks at which kernels have been compiled
_FILES_LEFT = (
    128  # files that connections leave: the state folder, the log, libraries that are loaded late
)
_ACCEPTED_AT_ONCE = 64  # connections, before too many are closed: fewer than _FILES_LEFT
_BACKLOG = 2048  # connections that may wait to be accepted


def run_service(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in flight are answered first.

    Raises:
        InputError: a fault in the settings, or an address that cannot be listened on.
    """
    limit_arenas()
    sys.setswitchinterval(_SWITCH_S)
    folder = prepared(config).resolve()
    if config.log_file:
        log_to(config.log_file.resolve())
    listening = _listen(config)
    try:
        with asyncio.Runner(loop_factory=_event_loop()) as runner:
            runner.run(_serve(config, folder, listening, say))
    finally:
        listening.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # not by joining threads, which may search paths for minutes; everything is on disk


def _event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of uvloop where it is installed, which takes half of the time of asyncio's
    own; None for that.
    """
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _listen(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With the protocol said, asyncio sends small packets at once; without it, each answer waits 40
    # ms for an ACK.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((config.host, config.port))
    except OSError as error:
        listening.close()
        raise InputError(
            "--host, --port", "", "an address to listen on", f"{address_of(config)}: {error}"
        ) from None
    return listening


async def _prepare(solver: Solver, say: Callable[[str], None]) -> None:
    """Prepare the kernels, again and again where that fails: the disk may be full for a while."""
    for pause_s in pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S):
        try:
            await _prepare_once(solver, say)
        except Exception as error:
            solver.kernels.fault = str(error) or type(error).__name__
            LOG.exception("kernels not ready", extra={"teal": {"fault": solver.kernels.fault}})
        if solver.kernels.are_there:
            return
        await asyncio.sleep(pause_s)


async def _prepare_once(solver: Solver, say: Callable[[str], None]) -> None:
    """Compile the kernels that are missing on this machine, in another process, and load all of
    them.

    Raises:
        RuntimeError: the other process failed.
    """
    kernels = solver.kernels
    began, loop = time.monotonic(), asyncio.get_running_loop()
    names = missing(all_tasks())
    if names:
        kernels.begin(len(names))
        say(f"compiling for this machine, once: {len(names)} parts; requests get 503 until then")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "teal", "warm-up"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # so that its helpers end with it
        )
        try:
            ending = asyncio.ensure_future(process.communicate())
            while not (await asyncio.wait({ending}, timeout=_PARTS_EVERY_S))[0]:
                kernels.done = len(names) - len(await asyncio.to_thread(missing, names))
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
        if process.returncode:
            lines = ending.result()[1].decode(errors="replace").strip().splitlines() or [""]
            raise RuntimeError(f"teal warm-up ended with {process.returncode}: {lines[-1][:200]}")
        kernels.done = len(names)
    # A thread of its own, which the end of the process does not wait for.
    thread = ThreadPoolExecutor(1, thread_name_prefix="prepare")
    await loop.run_in_executor(thread, solver.prepare)
    collect_seldom()
    kernels.finish()
    preparing = await solver.look()
    if preparing:
        await asyncio.wait(preparing)
    networks = ", ".join(await solver.queued()) or "no network is registered yet"
    say(f"ready after {time.monotonic() - began:.0f} s: {networks}")


async def _serve(
    config: ServeConfig, folder: Path, listening: socket.socket, say: Callable[[str], None]
) -> None:
    solver = Solver(folder, kernels=Kernels(), **solver_settings(config))
    await solver.look()  # paths of registered networks are computed beside the first requests
    # What may wait, and what is being solved.
    app = make_app(solver, most_open=config.max_waiting + MAX_LANES, **app_settings(config))
    app.openapi()  # takes a fifth of a second, once
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=limited(config.max_connections, max(1, allow_many_files() - _FILES_LEFT)),
            log_level="warning",
            access_log=False,
            backlog=_ACCEPTED_AT_ONCE,
            server_header=False,
            ws="none",
            proxy_headers=False,  # anybody on this machine could name another client
            lifespan="off",
            timeout_graceful_shutdown=_LONGEST_DEADLINE_S,
        )
    )
    collect_seldom()
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    listening.listen(_BACKLOG)  # the event loop takes the number above for both
    # After uvicorn's own handlers, which would raise the signal again at the end.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: _stop(server, say))
    say(answers(config, solver.folder))
    preparing = asyncio.create_task(_prepare(solver, say))
    looking = asyncio.create_task(_look_now_and_then(solver))
    await serving
    looking.cancel()
    preparing.cancel()
    await asyncio.gather(preparing, return_exceptions=True)


async def _look_now_and_then(solver: Solver) -> None:
    """Another service over the same folder may register and delete networks."""
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        await solver.look_again()


def _stop(server: uvicorn.Server, say: Callable[[str], None]) -> None:
    if server.should_exit:  # a second time: do not wait
        server.force_exit = True
        return
    server.should_exit = True
    with contextlib.suppress(RuntimeError):  # the signal came while something was being printed
        say("stopping: requests in flight are answered first")
