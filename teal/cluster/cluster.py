"""Connections to Ray: to a cluster, or to a new local instance."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from teal.cluster.guard import guard
from teal.errors import InputError, SolverError, TealError


@contextlib.contextmanager
def connected(extra: str = "ray") -> Iterator[Any]:
    """Connect to Ray while the block runs; yield the module ray.

    The variable ``RAY_ADDRESS`` names the cluster; without it, a local one is started on the
    loopback address. A connection that exists already is used and stays open.

    Args:
        extra: pip extra of ``teal-te`` that installs Ray, for the message.

    Raises:
        InputError: Ray is not installed, or the cluster is unreachable.
    """
    # Ray reads these security settings when it is imported.
    guard()
    try:
        import ray
    except ImportError as error:
        raise InputError.invalid(
            "Ray", "", f"not installed ({error})", f"pip install 'teal-te[{extra}]'"
        ) from None
    must_connect = not ray.is_initialized()
    with contextlib.ExitStack() as stack:
        if must_connect:
            _connect(ray, stack)
        try:
            yield ray
        finally:
            if must_connect:
                ray.shutdown()


def _connect(ray: Any, stack: contextlib.ExitStack) -> None:
    """Connect to the cluster of ``RAY_ADDRESS``, or start a local one.

    Args:
        ray: module ray.
        stack: stack that deletes the files of a local cluster when it is closed.

    Raises:
        InputError: the cluster is unreachable.
    """
    # Without the setting "address", Ray connects to the cluster of the variable.
    address = os.environ.get("RAY_ADDRESS", "")
    settings: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": "ERROR",
        "configure_logging": False,
    }
    if not address:
        # Use a private folder: Ray's default folder is world-writable, so that others could replace
        # a log by a symbolic link.  Its name is short, since it contains sockets, whose paths have
        # at most 107 characters.
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="teal-ray-", ignore_cleanup_errors=True)
        )
        # "local": a new instance, not a cluster that happens to run on this machine.
        settings |= {
            "address": "local",
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": folder,
        }
    try:
        ray.init(namespace="teal", **settings)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if not address:
            raise
        raise InputError.invalid(
            "RAY_ADDRESS",
            "",
            f"no Ray cluster at {address}: {error}",
            "set it to the address of a running cluster, or unset it to start a local one",
        ) from None


def units(ray: Any, kind: str) -> int:
    """Return the number of CPUs or GPUs of the cluster.

    Args:
        ray: module ray, connected to a cluster.
        kind: CPU or GPU.
    """
    return int(ray.cluster_resources().get(kind, 0))


def require_units(ray: Any, kind: str, count: int, option: str) -> None:
    """Raise InputError unless the cluster has enough CPUs or GPUs; Ray would wait forever.

    Args:
        ray: module ray, connected to a cluster.
        kind: CPU or GPU.
        count: required number of units.
        option: option that requests them, for the message.
    """
    available = units(ray, kind)
    if available < count:
        hint = " or --device cpu" if kind == "GPU" else ""
        raise InputError.invalid(
            option,
            "",
            f"{count} is more than the {available} {kind}s of the cluster",
            f"use at most {available}{hint}",
        )


def teal_error(error: BaseException, text: str) -> TealError:
    """Return the Teal error that caused an error of Ray.

    Without one in its chain of causes, return a SolverError with ``text`` and the message of the
    error of Ray.

    Args:
        error: error of Ray.
        text: description of the failed work.
    """
    current_error: BaseException | None = error
    # Follow the chain of causes: attribute `cause` of Ray's errors, `__cause__` of Python's.
    while current_error is not None:
        if isinstance(current_error, TealError):
            return current_error
        current_error = getattr(current_error, "cause", None) or current_error.__cause__
    return SolverError(f"{text}: {error}")
