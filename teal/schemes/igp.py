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
    """Source of the IGP's shortest paths over the working links of a network.

    The shortest paths of the last network are cached.

    Attributes:
        metric: link metric: ``file``, ``hops``, ``latency`` or ``inverse-capacity``.
    """

    metric: str = "file"

    def __post_init__(self) -> None:
        """Raise InputError if the metric is not one of the known ones."""
        self._cached_dag: tuple[tuple[str, bytes], EcmpDag] | None = None
        if self.metric not in METRICS:
            raise InputError("scheme", "metric", " or ".join(METRICS), repr(self.metric))

    def of(self, problem: Problem) -> EcmpDag:
        """Return the shortest paths over the working links of a problem.

        Raises:
            InputError: the matrices have different failed links.
        """
        is_live = (problem.capacity > 0).cpu()
        if bool((is_live != is_live[:1]).any()):
            raise InputError.invalid(
                "segment lists",
                "capacity",
                "the matrices have different failed links",
                "give matrices with the same failed links",
            )
        # Compute the shortest paths, unless network and failed links are those of the last call.
        # Links of capacity 0 count as failed.
        key = problem.topology.content_key(), is_live[0].numpy().tobytes()
        if self._cached_dag is None or self._cached_dag[0] != key:
            metric = igp_metric(problem.topology, self.metric)
            capacity = problem.capacity[0].to("cpu", torch.float64).numpy()
            self._cached_dag = (
                key,
                EcmpDag.of(dataclasses.replace(problem.topology, capacity=capacity), metric),
            )
        return self._cached_dag[1]


def check_igp_program(problem: Problem, dag: EcmpDag) -> None:
    """Check that a problem can be solved over the shortest paths ``dag``.

    Raises:
        InputError: side conditions, or other failed links than those of the shortest paths.
    """
    if problem.conditions:
        names = ", ".join(condition.name for condition in problem.conditions)
        raise InputError("segment lists", "conditions", "a program without side conditions", names)
    is_live = torch.from_numpy(np.isfinite(dag.links.metric)).to(problem.capacity.device)
    if bool(((problem.capacity > 0) != is_live).any()):
        raise InputError.invalid(
            "segment lists",
            "capacity",
            "the problem and the shortest paths have different failed links",
            "compute the shortest paths with the same failed links",
        )


def ecmp_allocation(problem: Problem, dag: EcmpDag) -> Allocation:
    """Return the allocation of equal-cost multipath routing over the IGP's shortest paths.

    Its ``paths`` are these shortest paths.  If the objective may shed demand, flow is scaled down
    to the capacities.

    Args:
        problem: B matrices.
        dag: shortest paths over the working links of the problem.

    Raises:
        InputError: side conditions, or other failed links than those of the shortest paths.
    """
    begin = time.perf_counter()
    check_igp_program(problem, dag)
    # One segment list per demand, straight to its target, which carries all of the demand.
    segment_lists = CandidateLists.straight(dag, problem.paths.pairs)
    list_problem = problem.to(torch.float64).with_paths(segment_lists)
    splits = project(list_problem, list_problem.first_path_splits, refill=0)
    allocation = Allocation.of_batch(splits, None, time.perf_counter() - begin)
    return dataclasses.replace(allocation, paths=segment_lists)
