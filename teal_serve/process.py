"""Service in one process, without Ray: HTTP server on an event loop, solver in a thread.

:func:`run_service` starts it. The socket listens at once, while missing kernels are compiled in a
child process. :func:`limited_protocol` protects against slow clients and too many connections.
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
from teal.solvers.pdhg import MAX_LANES
from teal_serve.engine.backoff import backoff
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.kernels import KernelStatus
from teal_serve.engine.log import LOG, log_to
from teal_serve.http.app import Service, make_app
from teal_serve.settings import ServeConfig
from teal_serve.start import (
    app_settings,
    engine_settings,
    prepare_folder,
    service_url,
    start_message,
)

# Maximum size of a request head (request line and headers).
MAX_HEAD_BYTES = 64 << 10
# Within this time a client must read MIN_READ_BYTES of its response, or all that remains of it.
SLOW_READER_TIMEOUT_S = 30.0
MIN_READ_BYTES = 64 << 10
# Time limit to receive the whole head of a request.
HEAD_TIMEOUT_S = 10.0


class _ConnectionCounter:
    """Counter of open connections by client address, with limits.

    Args:
        max_per_address: maximum number of connections of one address.
        max_total: maximum number of connections of all addresses.
    """

    def __init__(self, max_per_address: int, max_total: int) -> None:
        self._max_per_address = max_per_address
        self._max_total = max_total
        self._num_connections: Counter[str] = Counter()

    def add(self, address: str) -> None:
        """Count a new connection of an address."""
        self._num_connections[address] += 1

    def exceeds_limits(self, address: str) -> bool:
        """Return whether the address, or all addresses together, have too many connections."""
        return (
            self._num_connections[address] > self._max_per_address
            or self._num_connections.total() > self._max_total
        )

    def remove(self, address: str) -> None:
        """Count a closed connection of an address."""
        self._num_connections[address] -= 1
        if not self._num_connections[address]:
            del self._num_connections[address]


# Typed as Any, since a type checker refuses a variable as a base class.
_UvicornProtocol: Any = AutoHTTPProtocol


class _LimitedProtocol(_UvicornProtocol):
    """HTTP protocol of a connection that limits connections, request heads and slow readers.

    A connection is closed if its address has too many, if a request head is too large or too slow,
    or if the client does not read its response.
    """

    # Counter that all connections share.
    _connection_counter: _ConnectionCounter

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Count the connection; close it if there are too many, else start its timers."""
        self._address = str((transport.get_extra_info("peername") or ("",))[0])
        # Timer of the current request head; None while no head is awaited.
        self._head_timer: asyncio.TimerHandle | None = None
        # Received bytes of the current request head.
        self._head_bytes = 0
        self._connection_counter.add(self._address)
        super().connection_made(transport)
        self._schedule_read_check(None, 0)
        if self._connection_counter.exceeds_limits(self._address):
            transport.abort()
        else:
            self._start_head_timer(transport)

    def _schedule_read_check(self, cycle: Any, buffered_bytes: int) -> None:
        """Check after ``SLOW_READER_TIMEOUT_S`` whether the client reads its response.

        Args:
            cycle: uvicorn's current request and response; None before the first one.
            buffered_bytes: bytes of the response in the write buffer now.
        """
        self._read_timer = asyncio.get_running_loop().call_later(
            SLOW_READER_TIMEOUT_S, self._check_reader, cycle, buffered_bytes
        )

    def _check_reader(self, last_cycle: Any, last_buffered_bytes: int) -> None:
        """Close the connection of a client that reads too slowly; schedule the next check.

        Since the last check, the client must have read ``MIN_READ_BYTES`` or all unread bytes.

        Args:
            last_cycle: request and response at the last check.
            last_buffered_bytes: bytes in the write buffer at the last check.
        """
        buffered_bytes = self.transport.get_write_buffer_size()
        # The same response is still being sent, and the client has read too little of it.
        if (
            last_buffered_bytes
            and last_cycle is self.cycle
            and buffered_bytes > max(0, last_buffered_bytes - MIN_READ_BYTES)
        ):
            self.transport.abort()
        self._schedule_read_check(self.cycle, buffered_bytes)

    def data_received(self, data: bytes) -> None:
        """Pass on received bytes, and close the connection if the request head gets too large.

        The timer of the head stops when the head is complete, and starts again after the response.
        """
        # A head is being received: its timer runs, or no response is in progress.
        if self._head_timer is not None or self.cycle is None or self.cycle.response_complete:
            # Count only the bytes of the head; the data may include a part of the body.
            head_end = data.find(b"\r\n\r\n")
            self._head_bytes += len(data) if head_end < 0 else head_end
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.abort()
                return
        # Parse the data. No head is awaited while a response is in progress: the timer stops then,
        # and that of the next head starts afterwards.
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_head_timer()
            self._head_bytes = 0
        elif self._head_timer is None:
            self._start_head_timer(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers of a closed connection, and count it as closed."""
        self._cancel_head_timer()
        self._read_timer.cancel()
        self._connection_counter.remove(self._address)
        super().connection_lost(exc)

    def _start_head_timer(self, transport: asyncio.Transport) -> None:
        """Start the timer that closes the connection unless a whole head arrives in time."""
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, transport.abort)

    def _cancel_head_timer(self) -> None:
        """Stop the timer of the request head."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def limited_protocol(max_per_address: int, max_total: int = 1 << 20) -> type[asyncio.Protocol]:
    """Return a protocol class for uvicorn that limits connections, request heads and slow readers.

    A head (request line and headers) must arrive within ``HEAD_TIMEOUT_S`` and have at most
    ``MAX_HEAD_BYTES``. Clients must read their responses, since unread ones stay in memory even
    after the server has closed the connection.

    Args:
        max_per_address: maximum number of connections of one address.
        max_total: maximum number of connections of all addresses; a number below the limit of open
            files leaves files for the state folder.
    """

    # A class with its own counter, since uvicorn creates an instance for each connection.
    class Limited(_LimitedProtocol):
        _connection_counter = _ConnectionCounter(max_per_address, max_total)

    return Limited


def raise_file_limit() -> int:
    """Raise the limit of open files to the maximum of the system; return the new limit.

    An infinite limit is returned as 2^20.
    """
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft_limit == resource.RLIM_INFINITY else soft_limit


# Maximum wait of the event loop for a thread that runs Python code, seconds; Python's default is
# 0.005.
_THREAD_SWITCH_INTERVAL_S = 0.001
# Code of the parameter M_ARENA_MAX of mallopt(3), the maximum number of arenas.
_M_ARENA_MAX = -8
# Few arenas: with one per thread, each keeps the largest memory that its thread ever needed.
_MAX_ARENAS = 2


def limit_arenas() -> None:
    """Limit the number of memory arenas of glibc's allocator, to save memory."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _MAX_ARENAS)


def tune_garbage_collection() -> None:
    """Exclude all present objects from garbage collection, and collect less often.

    A collection stops all threads until every object is visited: a tenth of a second for the
    objects of the libraries, or for those of a large body.
    """
    gc.collect()
    gc.freeze()
    # Collect new objects after so many allocations, and each older generation after 20 collections
    # of the next younger one.
    gc.set_threshold(_GC_THRESHOLD, 20, 20)


# Number of new objects between two collections; Python's default is 700.
_GC_THRESHOLD = 50_000
# Time limit for requests in flight at shutdown; longer than the maximum deadline.
_SHUTDOWN_TIMEOUT_S = 620
# Poll interval of the state folder.
_STORE_POLL_INTERVAL_S = 2.0
# Backoff between attempts to prepare the kernels.
_FIRST_PAUSE_S = 10.0
_MAX_PAUSE_S = 600.0
# Poll interval of the number of compiled kernels.
_KERNEL_POLL_INTERVAL_S = 0.5
# Number of open files reserved for the state folder, the log and late imports.
_RESERVED_FILES = 128
# Connections accepted at once, before surplus ones are closed; fewer than _RESERVED_FILES.
_ACCEPT_BATCH = 64
# Maximum number of connections that wait to be accepted.
_BACKLOG = 2048


def run_service(config: ServeConfig, notify: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; finish the requests in flight, then end the process.

    Args:
        config: settings of `teal serve`.
        notify: prints one line of text.

    Raises:
        InputError: invalid settings, or an address that cannot be bound.
    """
    limit_arenas()
    sys.setswitchinterval(_THREAD_SWITCH_INTERVAL_S)
    folder = prepare_folder(config).resolve()
    if config.log_file:
        log_to(config.log_file.resolve())
    listener = _bind(config)
    try:
        with asyncio.Runner(loop_factory=_event_loop()) as runner:
            runner.run(_serve(config, folder, listener, notify))
    finally:
        listener.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit without joining threads, whose path searches may take minutes; all state is on disk.
    os._exit(0)


def _event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the event loop factory of uvloop, twice as fast as asyncio's loop; None without it."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _bind(config: ServeConfig) -> socket.socket:
    """Return a TCP socket bound to the address of the settings.

    Raises:
        InputError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only for an explicit protocol; without it, each response waits 40 ms
    # for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise InputError.invalid(
            "--host, --port",
            "",
            f"cannot listen on {service_url(config)}: {error}",
            "use another address or port",
        ) from None
    return listener


async def _prepare_kernels(engine: AllocationEngine, notify: Callable[[str], None]) -> None:
    """Compile and load the kernels; retry failures with backoff, since they may be transient.

    An example of a transient failure is a full disk.

    Args:
        engine: engine whose status and kernels are updated.
        notify: prints one line of text.
    """
    for pause_s in backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S):
        try:
            await _try_prepare_kernels(engine, notify)
        except Exception as error:
            engine.kernels.fault = str(error) or type(error).__name__
            LOG.exception("kernels not ready", extra={"teal": {"fault": engine.kernels.fault}})
        if engine.kernels.are_ready:
            return
        await asyncio.sleep(pause_s)


async def _try_prepare_kernels(engine: AllocationEngine, notify: Callable[[str], None]) -> None:
    """Compile missing kernels in a child process, then load all of them.

    The status of the kernels is updated meanwhile, so that refused requests report the progress.

    Args:
        engine: engine whose status and kernels are updated.
        notify: prints one line of text.

    Raises:
        RuntimeError: the child process failed.
    """
    kernel_status = engine.kernels
    begin_time = time.monotonic()
    loop = asyncio.get_running_loop()
    # Compile missing kernels by `teal warm-up` in a child process; poll the number of done parts.
    missing_tasks = missing(all_tasks())
    if missing_tasks:
        kernel_status.begin(len(missing_tasks))
        notify(
            f"compiling the kernels for this machine, once: {len(missing_tasks)} parts; requests "
            "get 503 until they are loaded"
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "teal", "warm-up"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # In a new session, so that its helper processes can be ended with it.
            start_new_session=True,
        )
        try:
            # Future of the output, which is done when the child process has ended.
            output_future = asyncio.ensure_future(process.communicate())
            while not (await asyncio.wait({output_future}, timeout=_KERNEL_POLL_INTERVAL_S))[0]:
                kernel_status.num_done = len(missing_tasks) - len(
                    await asyncio.to_thread(missing, missing_tasks)
                )
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
        # Report the last line of standard error of a failed compilation.
        if process.returncode:
            lines = output_future.result()[1].decode(errors="replace").strip().splitlines() or [""]
            raise RuntimeError(
                f"teal warm-up failed with exit code {process.returncode}: {lines[-1][:200]}"
            )
        kernel_status.num_done = len(missing_tasks)
    # Load all kernels in a thread; the end of the process does not wait for it.
    executor = ThreadPoolExecutor(1, thread_name_prefix="prepare")
    await loop.run_in_executor(executor, engine.prepare)
    tune_garbage_collection()
    kernel_status.finish()
    # Wait for the paths of the registered networks.
    path_searches = await engine.sync_with_store()
    if path_searches:
        await asyncio.wait(path_searches)
    # The keys of the queue lengths are the names of the ready networks.
    networks = ", ".join(await engine.queued()) or "no network is registered yet"
    notify(f"ready after {time.monotonic() - begin_time:.0f} s: {networks}")


def _make_server(app: Service, max_per_address: int) -> uvicorn.Server:
    """Return a uvicorn server of the application with limited connections.

    Args:
        app: application.
        max_per_address: maximum number of connections of one address.
    """
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=limited_protocol(max_per_address, max(1, raise_file_limit() - _RESERVED_FILES)),
            log_level="warning",
            access_log=False,
            backlog=_ACCEPT_BATCH,
            server_header=False,
            ws="none",
            # Ignore X-Forwarded-For: local processes could pretend to be another client.
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
        )
    )


async def _serve(
    config: ServeConfig, folder: Path, listener: socket.socket, notify: Callable[[str], None]
) -> None:
    """Run the server until a signal stops it.

    Args:
        config: settings of `teal serve`.
        folder: state folder.
        listener: socket bound to the address of the service.
        notify: prints one line of text.
    """
    # Build the engine.
    engine = AllocationEngine(folder, kernels=KernelStatus(), **engine_settings(config))
    # Start to prepare the registered networks, in parallel with the first requests.
    await engine.sync_with_store()
    # Build the application. Maximum of open allocations: the queued requests, and one batch in the
    # solver.
    app = make_app(engine, max_open=config.max_waiting + MAX_LANES, **app_settings(config))
    # Build the OpenAPI description now; the first call takes a fifth of a second.
    app.openapi()
    server = _make_server(app, config.max_connections)
    tune_garbage_collection()
    # Start the server.
    serve_task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serve_task.done():
        await asyncio.sleep(0.01)
    # Set the backlog again: uvicorn has a single setting for backlog and accept batch.
    listener.listen(_BACKLOG)
    # Replace uvicorn's signal handlers, which would raise the signal again at the end.
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, lambda *_: _stop(server, notify))
    notify(start_message(config, engine.folder))
    # Prepare the kernels and poll the state folder until the server ends.
    prepare_task = asyncio.create_task(_prepare_kernels(engine, notify))
    poll_task = asyncio.create_task(_poll_store(engine))
    await serve_task
    # Cancel both tasks, and wait until a running compilation has been ended.
    poll_task.cancel()
    prepare_task.cancel()
    await asyncio.gather(prepare_task, return_exceptions=True)


async def _poll_store(engine: AllocationEngine) -> None:
    """Poll the state folder for networks that other services register, change or delete."""
    while True:
        await asyncio.sleep(_STORE_POLL_INTERVAL_S)
        await engine.try_sync_with_store()


def _stop(server: uvicorn.Server, notify: Callable[[str], None]) -> None:
    """Stop the server: the first signal waits for requests in flight, the second one does not."""
    if server.should_exit:
        server.force_exit = True
        return
    server.should_exit = True
    # The signal may interrupt a print.
    with contextlib.suppress(RuntimeError):
        notify("stopping: requests in flight are answered first")
