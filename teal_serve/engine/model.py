"""Warm-start model of a running service, reloaded when its files change.

:class:`ReloadableModel` compares file fingerprints at most once a second, loads a changed model in
a background thread and validates it in the solver thread before use.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from teal.nn.checkpoint import MODEL_CARD, MODEL_WEIGHTS
from teal.runtime.storage import file_key, model_folder
from teal.schemes.models import Model, load_model
from teal.schemes.price_gnn import DEFAULT_CHECKPOINT
from teal_serve.engine.log import LOG

# Minimum interval between two checks of the files of the model.
_CHECK_INTERVAL_S = 1.0


class ReloadableModel:
    """Model for warm starts, which is replaced when the files in its folder change.

    Requests use the old model until the new one is validated; if validation fails, the old one
    stays. If the first model is invalid, there is none, and the solver starts cold.

    Args:
        name: auto (the built-in model), none, or the folder of a model.
        check_model: validation of a loaded model; raises if it is unusable.
        engine_thread: solver thread, in which models are validated.
        load_now: whether to load the model at once; else :meth:`read` loads it.

    Attributes:
        starter: current model; None without one.
    """

    def __init__(
        self,
        name: str,
        check_model: Callable[[Model], None],
        engine_thread: Executor,
        *,
        load_now: bool = True,
    ) -> None:
        """Find the folder of the model, and load the model unless ``load_now`` is false."""
        self._name = name
        self._check_model = check_model
        self._engine_thread = engine_thread
        self._loader_thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        # Folder of the model; None without a model.
        self._folder = (
            None
            if name == "none"
            else model_folder(DEFAULT_CHECKPOINT if name == "auto" else Path(name))
        )
        # Last check of the files, by time.monotonic(), and their fingerprint then.
        self._last_check = time.monotonic()
        self._last_fingerprint = self._fingerprint()
        self._reload_future: Future[None] | None = None
        # Error of the last load; "" if it succeeded.
        self._error = ""
        # Current model, prefix of the hash of its weights, and load time in seconds since 1970.
        self.starter: Model | None = None
        self._version = ""
        self._loaded_at = 0.0
        if load_now:
            self.read()

    def current(self) -> Model | None:
        """Return the current model; start a reload in the background if its files have changed."""
        now = time.monotonic()
        if self._folder is not None and now >= self._last_check + _CHECK_INTERVAL_S:
            self._last_check = now
            fingerprint = self._fingerprint()
            if fingerprint != self._last_fingerprint and (
                self._reload_future is None or self._reload_future.done()
            ):
                self._last_fingerprint = fingerprint
                self._reload_future = self._loader_thread.submit(self.read)
        return self.starter

    def description(self) -> dict[str, Any]:
        """Return name, version and load time of the model, and the error of the last reload.

        The fields are those of ``responses.ModelInfo`` without the solver.
        """
        return {
            "model": self._name,
            "loaded_version": self._version,
            "loaded_at": self._loaded_at,
            "last_error": self._error,
        }

    def read(self) -> None:
        """Load and validate the model; on failure keep the old one, and log the error.

        With the name ``none`` there is nothing to load.
        """
        try:
            if self._folder is None:
                return
            # Load the model, and validate it in the solver thread before it is used.
            model = load_model(self._folder)
            version = file_key(self._folder / MODEL_WEIGHTS)
            self._engine_thread.submit(self._check_model, model).result()
            self.starter = model
            self._version = version[:12]
            self._loaded_at = round(time.time(), 3)
            self._error = ""
        except Exception as error:
            self._error = str(error) or type(error).__name__
            LOG.warning(
                "model not loaded", extra={"teal": {"model": self._name, "error": self._error}}
            )

    def _fingerprint(self) -> list[tuple[int, int, int]]:
        """Return inode, modification time (ns) and size of the model's files; [] if one is missing.

        The model card has the hash of the weights, so that a half-written model is invalid.
        """
        if self._folder is None:
            return []
        try:
            files = [(self._folder / name).stat() for name in (MODEL_CARD, MODEL_WEIGHTS)]
        # A file is missing or cannot be accessed.
        except OSError:
            return []
        return [(status.st_ino, status.st_mtime_ns, status.st_size) for status in files]
