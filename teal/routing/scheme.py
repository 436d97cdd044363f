"""The scheme ``segments``: segment lists over the IGP's shortest paths, certified over all lists of a length.

Its splits are over lists of its own, so that its gap is that to the best lists, and its value may lie above the best
over the candidate paths.  Failed links are those of the problem: the IGP has converged without them.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch

from teal.errors import InputError
from teal.network.ecmp import METRICS, EcmpDag, igp_metric
from teal.problem import Allocation, Problem
from teal.routing.segments.over_lists import solve_over_lists
from teal.runtime.interruptible import Deadline
from teal.spec import Spec


@dataclasses.dataclass
class Igp:
    """Shortest paths of a problem's network, without the links that have failed; the last ones are kept.

    Attributes:
        metric: ``file``, ``hops``, ``latency`` or ``inverse-capacity``; see :func:`teal.network.ecmp.igp_metric`.
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
            raise InputError("segment lists", "capacity", "matrices with the same failed links", "others")
        key = problem.topology.content_key(), live[0].numpy().tobytes()
        if self._last is None or self._last[0] != key:
            metric = igp_metric(problem.topology, self.metric)
            capacity = problem.capacity[0].to("cpu", torch.float64).numpy()
            self._last = key, EcmpDag.of(dataclasses.replace(problem.topology, capacity=capacity), metric)
        return self._last[1]


@dataclasses.dataclass
class Segments:
    """The scheme ``segments`` (see the module).

    Attributes:
        segments: the most of a list, the one to the target included.
        adjacency: whether a list may take links whatever the metrics say.
        gap: certified gap to the optimum over all such lists, at which it stops.
        deadline: seconds a batch; 0 for none.
        igp: finds the shortest paths.
    """

    segments: int = 2
    adjacency: bool = False
    gap: float = 1e-2
    deadline: float = 0.0
    igp: Igp = dataclasses.field(default_factory=Igp)

    def solve(self, problem: Problem) -> Allocation:
        """Solve all matrices together; the time is divided evenly among them."""
        return solve_over_lists(
            problem, self.igp.of(problem), segments=self.segments, adjacencies=self.adjacency, gap=self.gap,
            deadline=Deadline.after(self.deadline or math.inf),
        ).allocation  # fmt: skip


def make(spec: Spec, model: Path | None) -> Segments:
    """``segments[:segments=2,adjacency=false,gap=0.01,deadline=0,metric=file|hops|latency|inverse-capacity]``."""
    options: Any = spec.parse_options(segments=2, adjacency=False, gap=1e-2, deadline=0.0, metric="file")
    scheme = Segments(igp=Igp(options.pop("metric")), **options)
    if scheme.segments < 1:
        raise InputError(spec.text, "segments", "a whole number of at least 1", scheme.segments)
    for option in ("gap", "deadline"):
        if not 0 <= getattr(scheme, option) < math.inf:
            raise InputError(spec.text, option, "a number >= 0", getattr(scheme, option))
    return scheme
