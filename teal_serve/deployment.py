"""Service in several processes with Ray Serve: HTTP ingresses and allocation engines.

:class:`Ingress` serves HTTP over :class:`_RemoteBackend`, which calls :class:`Engine` replicas.
:func:`running` starts both on this machine; :func:`build` builds them for a Serve config. Call
:func:`teal.cluster.guard.guard` before the import, since this module imports Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from teal.cluster.cluster import connected
from teal.errors import InputError
from teal.solvers.pdhg import MAX_LANES
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.errors import ServiceError, overloaded
from teal_serve.engine.log import log_to
from teal_serve.engine.warm_up import warm_up_requests
from teal_serve.http.app import Service, make_app
from teal_serve.settings import ServeConfig
from teal_serve.start import (
    app_settings,
    engine_settings,
    prepare_folder,
    service_url,
    start_message,
)

# Names of the Ray Serve applications: HTTP ingress, and engines.
APP = "teal"
ENGINES = "teal-engines"
# Time limit for requests in flight at shutdown: longer than the maximum deadline.
_DRAIN_TIMEOUT_S = 620.0
# Timeout of calls without computation; a terminating engine neither answers nor refuses calls.
_LOOK_UP_TIMEOUT_S = 10.0
# Interval at which the end of terminating applications is polled.
_POLL_INTERVAL_S = 0.2
# Maximum wait of a new engine for the paths of the registered networks.
_MAX_START_WAIT_S = 60.0
# Methods of the backend that ingresses call on engines.
_REMOTE_METHODS = (
    "names",
    "warnings",
    "queued",
    "check_ready",
    "model",
    "generation",
    "put",
    "info",
    "delete",
    "patch",
    "paths",
    "map",
    "allocate",
    "measure",
    "measured",
    "forget_measured",
)
# Remote methods without computation, which have a timeout.
_LOOK_UP_METHODS = (
    "names",
    "warnings",
    "queued",
    "check_ready",
    "generation",
)


class Engine(AllocationEngine):
    """Allocation engine as a Ray Serve deployment.

    Args:
        folder: state folder.
        log_file: path of the log file; "" for none.
        settings: further arguments of AllocationEngine.
    """

    def __init__(self, folder: str, log_file: str, settings: dict[str, Any]) -> None:
        if log_file:
            log_to(Path(log_file))
        warm_up_requests()
        super().__init__(Path(folder), **settings)
        self._is_new = True

    async def check_health(self) -> None:
        """Prepare networks that other processes have registered.

        Ray Serve calls this health check before the first request and every two seconds, so that
        each replica computes the paths of every network before a request needs them. A new replica
        waits a limited time for them; longer searches continue in the background.
        """
        # This never raises: the replacement of an engine would have the same state folder.
        path_searches = await self.try_sync_with_store()
        if self._is_new and path_searches:
            await asyncio.wait(path_searches, timeout=_MAX_START_WAIT_S)
        self._is_new = False


class _RemoteBackend:
    """Backend that forwards each call to an engine; retried once if the engine dies.

    Args:
        handle: Ray Serve handle of the engine deployment.
    """

    def __init__(self, handle: Any) -> None:
        # Define the methods of the protocol `Backend`.
        for name in _REMOTE_METHODS:
            setattr(
                self,
                name,
                self._remote_caller(
                    getattr(handle, name), _LOOK_UP_TIMEOUT_S if name in _LOOK_UP_METHODS else None
                ),
            )

    @staticmethod
    def _remote_caller(method: Any, timeout_s: float | None) -> Callable[..., Any]:
        """Return a coroutine function that calls a method of an engine.

        It retries once if the engine dies or does not answer in time, and converts errors of Ray to
        errors of the API.

        Args:
            method: remote method of the engine handle.
            timeout_s: timeout of an attempt, seconds; None for none.
        """

        async def call(*arguments: Any) -> Any:
            """Call the method of an engine, at most twice; return its result."""
            # Errors of the API pass unchanged; only a dead or silent engine is called again.
            for may_retry in (True, False):
                try:
                    async with asyncio.timeout(timeout_s):
                        return await method.remote(*arguments)
                except BackPressureError:
                    raise overloaded() from None
                except RayTaskError as error:
                    cause = error.cause
                    if isinstance(cause, ServiceError):
                        raise cause from None
                    raise
                except (RayActorError, DeploymentUnavailableError, TimeoutError):
                    # The second attempt failed, too: the client may retry after 3 s.
                    if not may_retry:
                        raise ServiceError(
                            503, "unavailable", "the engine is being restarted; retry later", 3.0
                        ) from None
            # Unreachable: the second attempt returns or raises.
            raise AssertionError

        return call


class Ingress:
    """HTTP ingress in front of the engines, as a Ray Serve deployment.

    Args:
        engines: Ray Serve handle of the engine deployment.
        log_file: path of the log file; "" for none.
        settings: further arguments of ``make_app``.
    """

    def __init__(self, engines: Any, log_file: str, **settings: Any) -> None:
        self._engines = engines
        self._settings = settings
        if log_file:
            log_to(Path(log_file))

    def __serve_build_asgi_app__(self) -> Service:
        """Return the ASGI application of this process; called by Ray Serve."""
        return make_app(_RemoteBackend(self._engines), **self._settings)  # type: ignore[arg-type]


def _shared_options(config: ServeConfig) -> dict[str, Any]:
    """Return the Ray Serve options that both deployments have."""
    # Ray Serve's own limits are four times the queue places of a network.
    max_requests = 4 * config.max_waiting
    return {
        "ray_actor_options": {"num_cpus": 0},
        "graceful_shutdown_timeout_s": _DRAIN_TIMEOUT_S,
        "max_ongoing_requests": max_requests,
        "max_queued_requests": max_requests,
    }


def _log_file(config: ServeConfig) -> str:
    """Return the absolute path of the log file; "" for none."""
    return str(config.log_file.resolve()) if config.log_file else ""


def _engine_deployment(config: ServeConfig, folder: Path) -> Any:
    """Return the engine deployment, bound to its settings."""
    deployment = serve.deployment(Engine).options(
        name="Engine",
        num_replicas=config.replicas,
        health_check_period_s=2,
        # Longer than the longest solve, during which the check does not run.
        health_check_timeout_s=600,
        **_shared_options(config),
    )
    return deployment.bind(str(folder), _log_file(config), engine_settings(config))


def _ingress_deployment(config: ServeConfig, engines: Any) -> Any:
    """Return the ingress deployment, bound to its settings and the engines or their handle."""
    deployment = serve.deployment(serve.ingress()(Ingress)).options(
        name="Ingress", num_replicas=config.ingresses, **_shared_options(config)
    )
    return deployment.bind(
        engines,
        _log_file(config),
        **app_settings(config),
        # Queued requests and one batch in the solver of every engine, divided among the ingresses.
        max_open=math.ceil(config.replicas * (config.max_waiting + MAX_LANES) / config.ingresses),
    )


def build(args: dict[str, Any]) -> Any:
    """Build the Ray Serve application for an existing cluster.

    The ``import_path`` of a Serve config (deploy/serve.yaml) names this function.

    Args:
        args: settings of :class:`~teal_serve.settings.ServeConfig`; ``state`` is a folder shared
            by all nodes. Host and port are Ray Serve's ``http_options``; a token is required
            (``TEAL_TOKEN``) unless ``host`` is a loopback address.

    Raises:
        InputError: invalid settings.
    """
    paths = {
        name: Path(args[name]) for name in ("state", "log_file", "token_file") if args.get(name)
    }
    # The default host is not a loopback address, so that a token is required.
    try:
        config = ServeConfig(**{"host": "0.0.0.0", **args, **paths})
    except TypeError as error:
        raise InputError.invalid(
            "args", "", f"they are not options of teal serve: {error}", "see teal serve --help"
        ) from None
    if config.state is None:
        raise InputError.invalid(
            "args", "state", "missing", "name a folder that all nodes of the cluster share"
        )
    return _ingress_deployment(config, _engine_deployment(config, prepare_folder(config)))


@contextlib.contextmanager
def running(config: ServeConfig, notify: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """Run the service on this machine while the block runs; yield its URL once it responds.

    Args:
        config: settings of `teal serve`.
        notify: prints one line of text.

    Raises:
        InputError: invalid settings.
    """
    if os.environ.get("RAY_ADDRESS"):
        raise InputError.invalid(
            "RAY_ADDRESS",
            "",
            f"set to {os.environ['RAY_ADDRESS']}, but this command starts its own cluster",
            "unset it; on an existing cluster use serve deploy deploy/serve.yaml",
        )
    # Validate the settings before Ray starts.
    folder = prepare_folder(config).resolve()
    with connected("serve"), _graceful_shutdown():
        # A request times out after 900 s, longer than the maximum deadline.
        serve.start(
            http_options={"host": config.host, "port": config.port, "request_timeout_s": 900},
            logging_config={"log_level": "WARNING", "enable_access_log": False, "encoding": "JSON"},
        )
        # Two applications, so that the ingress can terminate before the engines, which it uses.
        engines = serve.run(_engine_deployment(config, folder), name=ENGINES, route_prefix=None)
        serve.run(_ingress_deployment(config, engines), name=APP, route_prefix="/")
        notify(start_message(config, folder))
        yield service_url(config)


@contextlib.contextmanager
def _graceful_shutdown() -> Iterator[None]:
    """After the block, finish the requests in flight, then shut down Ray Serve."""
    try:
        yield
    finally:
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        for name in (APP, ENGINES):
            with contextlib.suppress(Exception):
                # Poll for the end, since a blocking deletion would wait for a minute at most.
                serve.delete(name, _blocking=False)
                while name in serve.status().applications and time.monotonic() < deadline:
                    time.sleep(_POLL_INTERVAL_S)
        serve.shutdown()


def run_service(config: ServeConfig, notify: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; finish the requests in flight."""
    stop_requested = threading.Event()
    with running(config, notify):
        # Replace Ray's signal handlers, which would drop the requests in flight.
        for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signal_number, lambda *_: stop_requested.set())
        while not stop_requested.wait(0.5):
            pass
        notify("stopping: requests in flight are answered first")
