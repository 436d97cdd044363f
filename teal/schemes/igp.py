"""The IGP's shortest paths as an allocation: what routers do by themselves (ECMP)."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import torch

from teal.errors import InputError
from teal.network.candidate_lists import CandidateLists
from teal.network.ecmp import METRICS, EcmpDag, igp_metric
from teal.problem import Allocation, Problem
from teal.solvers.projection import project


@dataclasses.dataclass
class Igp:
    """Shortest paths of a problem's network, without the links that have failed; the last ones are
    kept.

    Attributes:
        metric: ``file``, ``hops``, ``latency`` or ``inverse-capacity``; see
            :func:`teal.network.ecmp.igp_metric`.
    """

    metric: str = "file"

    def __post_init__(self) -> None:
        """Raise InputError for another metric."""
        self._last: tuple[tuple[str, bytes], EcmpDag] | None = None
        if self.metric not in METRICS:
            raise InputError("scheme", "metric", " or ".join(METRICS), repr(self.metric))

    def of(self, problem: Problem) -> EcmpDag:
        """The shortest paths of the links that work.

        Raises:
            InputError: links that fail in some of the matrices alone.
        """
        live = (problem.capacity > 0).cpu()
        if bool((live != live[:1]).any()):
            raise InputError(
                "segment lists", "capacity", "matrices with the same failed links", "others"
            )
        key = problem.topology.content_key(), live[0].numpy().tobytes()
        if self._last is None or self._last[0] != key:
            metric = igp_metric(problem.topology, self.metric)
            capacity = problem.capacity[0].to("cpu", torch.float64).numpy()
            self._last = (
                key,
                EcmpDag.of(dataclasses.replace(problem.topology, capacity=capacity), metric),
            )
        return self._last[1]


def check_igp_program(problem: Problem, dag: EcmpDag) -> None:
    """Raise InputError for side conditions, or for links that work in the problem and not in the
    shortest paths.
    """
    if problem.conditions:
        names = ", ".join(condition.name for condition in problem.conditions)
        raise InputError("segment lists", "conditions", "a program without side conditions", names)
    live = torch.from_numpy(np.isfinite(dag.links.metric)).to(problem.capacity.device)
    if bool(((problem.capacity > 0) != live).any()):
        raise InputError(
            "segment lists", "capacity", "matrices with the same failed links", "others"
        )


def ecmp_allocation(problem: Problem, dag: EcmpDag) -> Allocation:
    """Every demand straight along the IGP's shortest paths; ``paths`` are these lists.

    Where the objective may shed traffic, what passes an overloaded link is cut: see
    :func:`teal.project`.

    Raises:
        InputError: see :func:`check_igp_program`.
    """
    begin = time.perf_counter()
    check_igp_program(problem, dag)
    lists = CandidateLists.straight(dag, problem.paths.pairs)
    over = problem.to(torch.float64).with_paths(lists)
    splits = project(over, over.first_path_splits, refill=0)
    allocation = Allocation.of_batch(splits, None, time.perf_counter() - begin)
    return dataclasses.replace(allocation, paths=lists)
