"""Additions of this package to ``teal``: the command ``serve`` (entry point ``teal.commands``), and
the compilation of the service's kernels (entry point ``teal.warm_up``).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from teal.app.command import ALLOCATE, Command
from teal_serve.settings import ServeConfig

COMMANDS = {"serve": Command(ServeConfig, "teal_serve.command:serve_outcome", ALLOCATE)}


def _warm_up_kernels() -> None:
    """Call the kernels that the service needs for its requests."""
    # Imported here: the command line reads this module at every start.
    from teal_serve.engine.warm_up import warm_up_service

    warm_up_service()


# The service is optional: it needs FastAPI.
WARM_UP_TASKS: dict[str, Callable[[], None]] = {}
if importlib.util.find_spec("fastapi") is not None:
    WARM_UP_TASKS["service"] = _warm_up_kernels
