"""The PriceGNN that comes with Teal as the default start of a solve.

:class:`DefaultModel` loads it at the first prediction, once a process; :func:`default_model` says
for which programs it is asked at all.  Whether its prediction is then used is decided by predicted
time (:mod:`teal.solvers.engine_choice`, :mod:`teal.solvers.pdhg.model_start`).
"""

from __future__ import annotations

import functools
import threading

from torch import Tensor

from teal.nn.checkpoint import load_price_gnn
from teal.problem import Problem
from teal.runtime.storage import model_folder
from teal.schemes.price_gnn import DEFAULT_CHECKPOINT, PriceGnnScheme, saves_time
from teal.solvers import cost_model, pipeline
from teal.solvers.interior.engine import predicted_saving_s

# Smallest scan size (trie nodes and path slots) of a network on which the model is asked: about 40
# nodes.  Below it a solve takes less time than a prediction and its certificate.
MIN_SCAN = 12_000
# Time to load the model, s.
LOAD_S = 0.15
_lock = threading.Lock()


@functools.cache
def _shipped_model() -> PriceGnnScheme:
    """Return the PriceGNN that comes with Teal, loaded once a process."""
    return PriceGnnScheme(load_price_gnn(model_folder(DEFAULT_CHECKPOINT))[0])


class DefaultModel:
    """Starter that loads the PriceGNN that comes with Teal at its first use, from any thread."""

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the splits (B, D, K) and link prices (B, E) of the model, float32."""
        return self._model.start(problem)

    def start_for(self, problem: Problem, iterations: float) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) and link prices (B, E), after more rounds for harder programs.

        Args:
            problem: B matrices.
            iterations: predicted number of iterations after a cold start.
        """
        return self._model.start_for(problem, iterations)

    def start_sample(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) and link prices (B, E) for a sample of the demands."""
        return self._model.start_sample(problem)

    def rounds_for(self, iterations: float) -> int:
        """Return the number of rounds of both passes together for a program.

        Args:
            iterations: predicted number of iterations after a cold start.
        """
        return self._model.rounds_for(iterations)

    def warm_up_kernels(self, problem: Problem) -> None:
        """Load the model, and compile the CPU kernels of :meth:`start`."""
        self._model.warm_up_kernels(problem)

    @property
    def _model(self) -> PriceGnnScheme:
        with _lock:
            return _shipped_model()


def default_model(
    problem: Problem, gap: float, engine: str = "auto", *, counts_loading: bool = False
) -> DefaultModel | None:
    """Return the model that may start a problem for which the caller names none; None for no model.

    Args:
        problem: B matrices.
        gap: target gap.
        engine: engine that the caller names; with a name other than "auto" only path sets of at
            least 50,000 paths get the model.
        counts_loading: whether the process solves only this problem: the predicted saving must then
            exceed the time to load the model.
    """
    if not pipeline.takes_starter(problem) or problem.conditions:
        return None
    # On large path sets PDHG starts from the model in all programs.
    if saves_time(problem.paths):
        return DefaultModel()
    is_large_enough = problem.paths.scan_size >= MIN_SCAN
    if engine != "auto" or not is_large_enough or not cost_model.may_benefit_from_model(problem):
        return None
    if counts_loading and not _shipped_model.cache_info().currsize:
        saving_s = predicted_saving_s(problem, gap)
        if saving_s <= LOAD_S:
            return None
    return DefaultModel()
