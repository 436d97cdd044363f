"""The PriceGNN that comes with Teal as the default start of a solve.

:class:`DefaultModel` loads it at the first prediction, once a process; :func:`default_model` says
for which programs it is asked at all.  Whether its prediction is then used is decided by predicted
time (:mod:`teal.solvers.engine_choice`, :mod:`teal.solvers.pdhg.model_start`).
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path

from torch import Tensor

from teal.nn.checkpoint import load_price_gnn
from teal.problem import Problem
from teal.runtime.storage import packaged
from teal.schemes.price_gnn import DEFAULT_CHECKPOINT, PriceGnnScheme, saves_time
from teal.solvers import cost_model, pipeline
from teal.solvers.interior import engine as interior
from teal.solvers.pdhg.model_start import may_start_from_model

# Smallest scan size (trie nodes and path slots) of a network on which the model is asked: about 40
# nodes.  Below it a solve takes less time than a prediction and its certificate.
MIN_SCAN = 12_000
# Time to load the model, s.
LOAD_S = 0.15
# One prediction at a time: the model and torch's number of threads are shared.
_lock = threading.RLock()


@functools.cache
def _shipped_model() -> PriceGnnScheme:
    """Return the PriceGNN that comes with Teal, loaded once a process."""
    return PriceGnnScheme(load_price_gnn(_checkpoint_folder())[0])


def _checkpoint_folder() -> Path:
    """Return the folder of the checkpoint that comes with Teal, whatever the working directory."""
    return packaged(f"models/{DEFAULT_CHECKPOINT}")


class DefaultModel:
    """Starter that loads the PriceGNN that comes with Teal at its first use, from any thread."""

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the splits (B, D, K) and link prices (B, E) of the model, float32."""
        with _lock:
            return _shipped_model().start(problem)

    def start_for(self, problem: Problem, iterations: float) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) and link prices (B, E), after more rounds for harder programs.

        Args:
            problem: B matrices.
            iterations: predicted number of iterations after a cold start.
        """
        with _lock:
            return _shipped_model().start_for(problem, iterations)

    def start_sample(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) and link prices (B, E) for a sample of the demands."""
        with _lock:
            return _shipped_model().start_sample(problem)

    def rounds_for(self, iterations: float) -> int:
        """Return the number of rounds of both passes together for a program.

        Args:
            iterations: predicted number of iterations after a cold start.
        """
        with _lock:
            return _shipped_model().rounds_for(iterations)

    def warm_up_kernels(self, problem: Problem) -> None:
        """Load the model, and compile the CPU kernels of :meth:`start`."""
        with _lock:
            _shipped_model().warm_up_kernels(problem)


def default_model(
    problem: Problem, gap: float, engine: str = "auto", *, counts_loading: bool = False
) -> DefaultModel | None:
    """Return the model that may start a problem for which the caller names none; None for no model.

    It may start programs that maximise a linear value over paths, without side conditions, on a
    CPU.

    Args:
        problem: B matrices.
        gap: target gap.
        engine: engine that the caller names; with a name other than "auto" only path sets of at
            least 50,000 paths get the model.
        counts_loading: whether the process solves only this problem: the predicted saving must then
            exceed the time to load the model.
    """
    # No model for programs that cannot start from one, nor where its checkpoint is missing.
    if not pipeline.takes_starter(problem) or not may_start_from_model(problem, engine):
        return None
    if not _checkpoint_folder().is_dir():
        return None
    # On large path sets PDHG starts from the model.
    if saves_time(problem.paths):
        return DefaultModel()
    if engine != "auto" or problem.paths.scan_size < MIN_SCAN:
        return None
    # For a single problem, the predicted saving must also exceed the time to load the model.
    is_loaded = _shipped_model.cache_info().currsize > 0
    if counts_loading and not is_loaded and _predicted_saving_s(problem, gap) <= LOAD_S:
        return None
    return DefaultModel()


def _predicted_saving_s(problem: Problem, gap: float) -> float:
    """Return the seconds that interior points from the model save over the faster cold engine.

    Args:
        problem: B matrices.
        gap: target gap.
    """
    if not interior.accepts(problem):
        return 0.0
    features = interior.FirstMatrixProgram(problem).features(gap)
    cold_s = min(cost_model.seconds(name, features, is_warm=False) for name in ("interior", "pdhg"))
    return cold_s - cost_model.seconds_from_model(features)
