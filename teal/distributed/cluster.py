"""Ray, here or elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from teal.distributed.guard import guard
from teal.errors import InputError, SolverError, TealError


@contextlib.contextmanager
def connected(extra: str = "ray") -> Iterator[Any]:
    """Ray's module, connected: to the cluster of ``RAY_ADDRESS``, or to a new one on this machine's loopback address.

    Args:
        extra: the optional dependencies of Teal that bring Ray.

    Raises:
        InputError: Ray is not installed, or there is no such cluster.
    """
    guard()
    try:
        import ray
    except ImportError as error:
        raise InputError("Ray", "", f"its package: pip install 'teal-te[{extra}]'", error) from None
    ours = not ray.is_initialized()
    if ours:
        address = os.environ.get("RAY_ADDRESS", "")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
        # "local": not one that happens to run on this machine.
        here: dict[str, Any] = {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            ray.init(namespace="teal", **quiet, **({} if address else here))
        except (ConnectionError, ValueError, RuntimeError) as error:
            if not address:
                raise
            raise InputError("RAY_ADDRESS", "", "the address of a Ray cluster", f"{address}: {error}") from None
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def units(ray: Any, kind: str) -> int:
    """How many CPUs or GPUs the cluster has."""
    return int(ray.cluster_resources().get(kind, 0))


def require_units(ray: Any, kind: str, count: int, option: str) -> None:
    """Raise InputError unless the cluster has so many CPUs or GPUs: Ray would wait for them for ever."""
    there = units(ray, kind)
    if there < count:
        hint = " (or --device cpu)" if kind == "GPU" else ""
        raise InputError(option, "", f"at most {there}, the {kind}s of the cluster{hint}", count)


def cause(error: BaseException, text: str) -> TealError:
    """An error of Teal that Ray has wrapped, or ``text`` and what else it was."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, TealError):
            return inner
        inner = getattr(inner, "cause", None) or inner.__cause__
    failures = list(getattr(error, "worker_failures", {}).values())  # of Ray Train
    return SolverError(f"{text}: {(failures or [error])[-1]}")
