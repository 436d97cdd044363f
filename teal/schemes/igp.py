"""Allocation by the IGP: equal-cost multipath (ECMP) over shortest paths, as routers do it."""

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
    """Shortest paths of a problem's network without its failed links; the last ones are cached.

    Attributes:
        metric: link metric: ``file``, ``hops``, ``latency`` or ``inverse-capacity``.
    """

    metric: str = "file"

    def __post_init__(self) -> None:
        """Raise InputError for another metric."""
        self._last: tuple[tuple[str, bytes], EcmpDag] | None = None
        if self.metric not in METRICS:
            raise InputError("scheme", "metric", " or ".join(METRICS), repr(self.metric))

    def of(self, problem: Problem) -> EcmpDag:
        """Return the shortest paths over the working links of a problem.

        Raises:
            InputError: the matrices have different failed links.
        """
        live = (problem.capacity > 0).cpu()
        if bool((live != live[:1]).any()):
            raise InputError.invalid(
                "segment lists",
                "capacity",
                "the matrices have different failed links",
                "give matrices with the same failed links",
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
    """Validate a problem over shortest paths.

    Raises:
        InputError: side conditions, or other failed links than those of the shortest paths.
    """
    if problem.conditions:
        names = ", ".join(condition.name for condition in problem.conditions)
        raise InputError("segment lists", "conditions", "a program without side conditions", names)
    live = torch.from_numpy(np.isfinite(dag.links.metric)).to(problem.capacity.device)
    if bool(((problem.capacity > 0) != live).any()):
        raise InputError.invalid(
            "segment lists",
            "capacity",
            "the problem and the shortest paths have different failed links",
            "compute the shortest paths with the same failed links",
        )


def ecmp_allocation(problem: Problem, dag: EcmpDag) -> Allocation:
    """Return the ECMP allocation of every demand over the IGP's shortest paths; its ``paths`` are
    these.

    If the objective may shed demand, flow is scaled down to the capacities.

    Raises:
        InputError: side conditions, or other failed links than those of the shortest paths.
    """
    begin = time.perf_counter()
    check_igp_program(problem, dag)
    lists = CandidateLists.straight(dag, problem.paths.pairs)
    list_problem = problem.to(torch.float64).with_paths(lists)
    splits = project(list_problem, list_problem.first_path_splits, refill=0)
    allocation = Allocation.of_batch(splits, None, time.perf_counter() - begin)
    return dataclasses.replace(allocation, paths=lists)
