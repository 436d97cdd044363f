"""Ray Serve around the service: an ingress that speaks HTTP, engines that compute, and a retry between the two.

Whoever imports this has called :func:`teal.distributed.guard.guard` first, because it imports Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from teal.config import ServeConfig
from teal.distributed.cluster import connected
from teal.errors import InputError
from teal.serving.app import make_app
from teal.serving.errors import ServiceError, overloaded
from teal.serving.log import log_to
from teal.serving.served import rehearse_all
from teal.serving.settings import address_of, answers, app_settings, prepared, solver_settings
from teal.serving.solver import Solver
from teal.solvers.pdhg import MAX_LANES

APP = "teal"
_START_S = 60.0  # that a new engine has for the paths of networks that are registered
_CALLS = (
    "names",
    "warnings",
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
)


class Engine(Solver):
    """The solver as a deployment: networks and the engine, in a process of their own."""

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        rehearse_all()
        super().__init__(Path(folder), **settings)
        self._new = True

    async def check_health(self) -> None:
        """Called by Ray Serve before the engine gets requests, and every two seconds: are there new networks?

        Paths are computed before the first request, and on every engine when one of them is asked.  A new engine is
        given some time for it; what takes longer goes on beside requests for others.
        """
        preparing = await self.look()
        if self._new and preparing:
            await asyncio.wait(preparing, timeout=_START_S)
        self._new = False


class _Remote:
    """The engines, as the ingress sees them: a call that an engine's death cut off is made once more."""

    def __init__(self, handle: Any) -> None:
        for name in _CALLS:
            setattr(self, name, self._call(getattr(handle, name)))

    @staticmethod
    def _call(method: Any) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            for again in (True, False):
                try:
                    return await method.remote(*arguments)
                except BackPressureError:
                    raise overloaded() from None
                except RayTaskError as error:
                    cause = error.cause
                    if isinstance(cause, ServiceError):
                        raise cause from None
                    raise
                except (RayActorError, DeploymentUnavailableError):
                    if not again:
                        raise ServiceError(503, "unavailable", "the engine is being restarted", 3.0) from None
            raise AssertionError

        return call


class Ingress:
    """HTTP in front of the engines."""

    def __init__(self, engines: Any, log_file: str, **settings: Any) -> None:
        self._engines, self._settings = engines, settings
        if log_file:
            log_to(Path(log_file))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return make_app(_Remote(self._engines), **self._settings)  # type: ignore[arg-type]


def application(config: ServeConfig, folder: Path) -> Any:
    """What Ray Serve runs: deployments, bound to their settings."""
    waiting = 4 * config.max_waiting
    shared: dict[str, Any] = {"max_ongoing_requests": waiting, "max_queued_requests": waiting}
    engine = serve.deployment(Engine).options(
        name="Engine",
        num_replicas=config.replicas,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=2,
        health_check_timeout_s=600,  # a long solve is no illness
        graceful_shutdown_timeout_s=620,  # past the longest deadline
        **shared,
    )
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        name="Ingress", num_replicas=config.ingresses, ray_actor_options={"num_cpus": 0}, **shared
    )
    bound = engine.bind(str(folder), solver_settings(config))
    log_file = str(config.log_file.resolve()) if config.log_file else ""
    return ingress.bind(
        bound,
        log_file,
        **app_settings(config),
        # What may wait, and what is being solved.
        most_open=math.ceil(config.replicas * (config.max_waiting + MAX_LANES) / config.ingresses),
    )


def build(args: dict[str, Any]) -> Any:
    """What a Serve config names as its ``import_path`` (deploy/serve.yaml): the application on somebody's cluster.

    Args:
        args: settings of :class:`teal.config.ServeConfig`; ``state`` is a folder that all nodes share.  Host and port
            are Ray Serve's ``http_options``; a token is required (``TEAL_TOKEN``) unless ``host`` here is a loopback
            address.

    Raises:
        InputError: a fault in them.
    """
    paths = {name: Path(args[name]) for name in ("state", "log_file", "token_file") if args.get(name)}
    try:
        config = ServeConfig(**{"host": "0.0.0.0", **args, **paths})
    except TypeError as error:
        raise InputError("args", "", "the options of teal serve", error) from None
    if config.state is None:
        raise InputError("args", "state", "a folder that all nodes share", "none")
    return application(config, prepared(config))


@contextlib.contextmanager
def running(config: ServeConfig, say: Callable[[str], None] = lambda _: None) -> Iterator[str]:
    """The service, from when it answers until the block is left; its address.

    Raises:
        InputError: a fault in the settings.
    """
    if os.environ.get("RAY_ADDRESS"):
        expected = "none, or unset: this command is a service of its own; on a cluster, serve deploy deploy/serve.yaml"
        raise InputError("RAY_ADDRESS", "", expected, os.environ["RAY_ADDRESS"])
    folder = prepared(config).resolve()  # a fault is the user's, now
    with connected("serve"), _stopped():
        serve.start(
            http_options={"host": config.host, "port": config.port, "request_timeout_s": 900},
            logging_config={"log_level": "WARNING", "enable_access_log": False, "encoding": "JSON"},
        )
        serve.run(application(config, folder), name=APP, route_prefix="/")
        say(answers(config, folder))
        yield address_of(config)


@contextlib.contextmanager
def _stopped() -> Iterator[None]:
    """Leave nothing of the service behind."""
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            serve.delete(APP)
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
