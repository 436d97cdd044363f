"""The model of a running service: read again when its files change, without a request that waits or
is lost.
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
from teal.serving.engine.log import LOG

_LOOK_EVERY_S = 1.0


class ServedModel:
    """Where the engine starts on large networks; another one as soon as the folder holds another
    one that works.

    A request looks whether the files have changed, a second after the last look at the earliest.  A
    changed model is read beside the engine and tried between two batches; requests go on with the
    old one until then, and for good if the new one is no model or its answer is of no use.  One
    that is of no use from the start is none: the engine then starts from nothing.

    Args:
        name: auto, none, or that of :func:`teal.schemes.models.load_model`.
        prove: raises for a model that is of no use.
        engine: engine of PDHG, by which models compute.
        is_read: whether it is read at once; else by :meth:`read`.
    """

    def __init__(
        self,
        name: str,
        prove: Callable[[Model], None],
        engine: Executor,
        *,
        is_read: bool = True,
    ) -> None:
        self._name, self._prove, self._engine = name, prove, engine
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._folder = (
            None
            if name == "none"
            else model_folder(DEFAULT_CHECKPOINT if name == "auto" else Path(name))
        )
        self._looked, self._seen = time.monotonic(), self._stamp()
        self._reading: Future[None] | None = None
        self._error = ""
        self.starter: Model | None = None
        self._version, self._loaded = "", 0.0
        if is_read:
            self.read()

    def current(self) -> Model | None:
        """The model to start from now; looks at the files if it is time to."""
        now = time.monotonic()
        if self._folder is not None and now >= self._looked + _LOOK_EVERY_S:
            self._looked = now
            stamp = self._stamp()
            if stamp != self._seen and (self._reading is None or self._reading.done()):
                self._seen = stamp
                self._reading = self._beside.submit(self.read)
        return self.starter

    def description(self) -> dict[str, Any]:
        """Name, version of the weights, seconds since 1970 when they were read, and what is wrong
        with newer ones.
        """
        return {
            "model": self._name,
            "loaded_version": self._version,
            "loaded_at": self._loaded,
            "last_error": self._error,
        }

    def read(self) -> None:
        """Read the model, and use it if it is one."""
        try:
            if self._folder is None:
                return
            new = load_model(self._folder)
            version = file_key(self._folder / MODEL_WEIGHTS)
            self._engine.submit(self._prove, new).result()
            self.starter, self._version, self._loaded = new, version[:12], round(time.time(), 3)
            self._error = ""
        except Exception as error:
            self._error = str(error) or type(error).__name__
            LOG.warning(
                "model refused", extra={"teal": {"model": self._name, "error": self._error}}
            )

    def _stamp(self) -> list[tuple[int, int, int]]:
        """Which files they are; the card holds the weights' hash, so half of a new model is
        none.
        """
        if self._folder is None:
            return []
        try:
            files = [(self._folder / name).stat() for name in (MODEL_CARD, MODEL_WEIGHTS)]
        except OSError:  # no file, or none that can be looked at now
            return []
        return [(one.st_ino, one.st_mtime_ns, one.st_size) for one in files]
