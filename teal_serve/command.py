"""Command `teal serve`: the service in one process, or in several through Ray Serve."""

from __future__ import annotations

from teal.app.command import Notify, Outcome
from teal.errors import InputError
from teal_serve.settings import ServeConfig


def serve_outcome(config: ServeConfig, notify: Notify) -> Outcome:
    """Run the service until a signal ends it.

    Raises:
        InputError: invalid settings, or missing optional packages.
    """
    try:
        if config.is_one_process:
            from teal_serve.process import run_service
        else:
            from teal.cluster.guard import guard

            # Set Ray's environment variables before Ray is imported.
            guard()
            from teal.app.warm_up import compile_all_first
            from teal_serve.deployment import run_service

            compile_all_first(notify)
    except ImportError as error:
        raise InputError.invalid(
            "teal serve",
            "",
            f"packages of the service are not installed ({error})",
            "pip install 'teal-te[serve]'",
        ) from None
    run_service(config, notify)
    return Outcome(data={})
