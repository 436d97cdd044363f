"""Ray Serve around the service: an ingress that speaks HTTP, engines that compute, and a retry
between the two.

Whoever imports this has called :func:`teal.cluster.guard.guard` first, because it imports Ray.
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
from teal.serving.engine.errors import ServiceError, overloaded
from teal.serving.engine.log import log_to
from teal.serving.engine.solver import Solver
from teal.serving.engine.warm_up import warm_up_requests
from teal.serving.http.app import Service, make_app
from teal.serving.settings import ServeConfig
from teal.serving.start import address_of, answers, app_settings, prepared, solver_settings
from teal.solvers.pdhg import MAX_LANES

# Applications of Ray Serve: what speaks HTTP, and what it asks.
APP = "teal"
ENGINES = "teal-engines"
# seconds that requests in flight have when the service is told to stop: past the longest deadline
_DRAIN_S = 620.0
# seconds for an engine to look something up; engines that end take no calls, and refuse none
_MAX_LOOK_UP_S = 10.0
_POLL_S = 0.2  # seconds between two looks at applications that end
_START_S = 60.0  # that a new engine has for the paths of networks that are registered
_CALLS = (
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
_LOOK_UPS = (
    "names",
    "warnings",
    "queued",
    "check_ready",
    "generation",
)  # calls that compute nothing


class Engine(Solver):
    """The solver as a deployment: networks and the engine, in a process of their own."""

    def __init__(self, folder: str, log_file: str, settings: dict[str, Any]) -> None:
        if log_file:
            log_to(Path(log_file))
        warm_up_requests()
        super().__init__(Path(folder), **settings)
        self._new = True

    async def check_health(self) -> None:
        """Called by Ray Serve before the engine gets requests, and every two seconds: are there new
        networks?

        Paths are computed before the first request, and on every engine when one of them is asked.
        A new engine is given some time for it; what takes longer goes on beside requests for
        others.
        """
        preparing = await self.look_again()  # raises nothing: a new engine would know less
        if self._new and preparing:
            await asyncio.wait(preparing, timeout=_START_S)
        self._new = False


class _Remote:
    """The engines, as the ingress sees them: a call that an engine's death cut off is made once
    more.
    """

    def __init__(self, handle: Any) -> None:
        for name in _CALLS:
            setattr(
                self,
                name,
                self._call(getattr(handle, name), _MAX_LOOK_UP_S if name in _LOOK_UPS else None),
            )

    @staticmethod
    def _call(method: Any, limit_s: float | None) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            for again in (True, False):
                try:
                    async with asyncio.timeout(limit_s):
                        return await method.remote(*arguments)
                except BackPressureError:
                    raise overloaded() from None
                except RayTaskError as error:
                    cause = error.cause
                    if isinstance(cause, ServiceError):
                        raise cause from None
                    raise
                except (RayActorError, DeploymentUnavailableError, TimeoutError):
                    if not again:
                        raise ServiceError(
                            503, "unavailable", "the engine is being restarted", 3.0
                        ) from None
            raise AssertionError

        return call


class Ingress:
    """HTTP in front of the engines."""

    def __init__(self, engines: Any, log_file: str, **settings: Any) -> None:
        self._engines, self._settings = engines, settings
        if log_file:
            log_to(Path(log_file))

    def __serve_build_asgi_app__(self) -> Service:
        return make_app(_Remote(self._engines), **self._settings)  # type: ignore[arg-type]


def _shared_options(config: ServeConfig) -> dict[str, Any]:
    waiting = 4 * config.max_waiting
    return {
        "ray_actor_options": {"num_cpus": 0},
        "graceful_shutdown_timeout_s": _DRAIN_S,
        "max_ongoing_requests": waiting,
        "max_queued_requests": waiting,
    }


def _log_file(config: ServeConfig) -> str:
    """The file to which all processes of the service append; "" for none."""
    return str(config.log_file.resolve()) if config.log_file else ""


def _engines(config: ServeConfig, folder: Path) -> Any:
    """The deployment that computes, bound to its settings."""
    deployment = serve.deployment(Engine).options(
        name="Engine",
        num_replicas=config.replicas,
        health_check_period_s=2,
        health_check_timeout_s=600,  # a long solve is no illness
        **_shared_options(config),
    )
    return deployment.bind(str(folder), _log_file(config), solver_settings(config))


def _ingress(config: ServeConfig, engines: Any) -> Any:
    """The deployment that speaks HTTP, bound to its settings and to the engines or a handle of
    them.
    """
    deployment = serve.deployment(serve.ingress()(Ingress)).options(
        name="Ingress", num_replicas=config.ingresses, **_shared_options(config)
    )
    return deployment.bind(
        engines,
        _log_file(config),
        **app_settings(config),
        # What may wait, and what is being solved.
        most_open=math.ceil(config.replicas * (config.max_waiting + MAX_LANES) / config.ingresses),
    )


def build(args: dict[str, Any]) -> Any:
    """Build the application on somebody's cluster; a Serve config names this function as its
    ``import_path`` (deploy/serve.yaml).

    Args:
        args: settings of :class:`~teal.serving.settings.ServeConfig`; ``state`` is a folder that
            all nodes share.  Host and port are Ray Serve's ``http_options``; a token is required
            (``TEAL_TOKEN``) unless ``host`` here is a loopback address.

    Raises:
        InputError: a fault in them.
    """
    paths = {
        name: Path(args[name]) for name in ("state", "log_file", "token_file") if args.get(name)
    }
    try:
        config = ServeConfig(**{"host": "0.0.0.0", **args, **paths})
    except TypeError as error:
        raise InputError("args", "", "the options of teal serve", error) from None
    if config.state is None:
        raise InputError("args", "state", "a folder that all nodes share", "none")
    return _ingress(config, _engines(config, prepared(config)))


@contextlib.contextmanager
def running(config: ServeConfig, say: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """The service, from when it answers until the block is left; its address.

    Raises:
        InputError: a fault in the settings.
    """
    if os.environ.get("RAY_ADDRESS"):
        expected = (
            "none, or unset: this command is a service of its own; on a cluster, serve deploy "
            "deploy/serve.yaml"
        )
        raise InputError("RAY_ADDRESS", "", expected, os.environ["RAY_ADDRESS"])
    folder = prepared(config).resolve()  # a fault is the user's, now
    with connected("serve"), _stopped():
        serve.start(
            http_options={"host": config.host, "port": config.port, "request_timeout_s": 900},
            logging_config={"log_level": "WARNING", "enable_access_log": False, "encoding": "JSON"},
        )
        # Two applications: the one that speaks HTTP ends first, and may ask the other one until
        # then.
        engines = serve.run(_engines(config, folder), name=ENGINES, route_prefix=None)
        serve.run(_ingress(config, engines), name=APP, route_prefix="/")
        say(answers(config, folder))
        yield address_of(config)


@contextlib.contextmanager
def _stopped() -> Iterator[None]:
    """Let requests in flight be answered, and leave nothing of the service behind."""
    try:
        yield
    finally:
        end = time.monotonic() + _DRAIN_S
        for name in (APP, ENGINES):
            with contextlib.suppress(Exception):
                serve.delete(name, _blocking=False)  # which would wait for a minute at most
                while name in serve.status().applications and time.monotonic() < end:
                    time.sleep(_POLL_S)
        serve.shutdown()


def run_service(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in flight are answered first."""
    asked = threading.Event()
    with running(config, say):
        # After Ray's own handlers, which would drop what is in flight.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: asked.set())
        while not asked.wait(0.5):
            pass
        say("stopping: requests in flight are answered first")
