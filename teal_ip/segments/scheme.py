"""The scheme ``segments``: segment lists over the IGP's shortest paths, certified over all lists of
a length.

Its splits are over lists of its own, so that its gap is that to the best lists, and its value may
lie above the best over the candidate paths.  Failed links are those of the problem: the IGP has
converged without them.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.problem import Allocation, Problem
from teal.runtime.interruptible import Deadline
from teal.schemes.igp import Igp
from teal.spec import Spec
from teal_ip.segments.over_lists import solve_over_lists


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
            problem,
            self.igp.of(problem),
            segments=self.segments,
            adjacencies=self.adjacency,
            gap=self.gap,
            deadline=Deadline.after(self.deadline or math.inf),
        ).allocation


def make(spec: Spec, model: Path | None) -> Segments:
    """``segments[:segments=2,adjacency=false,gap=0.01,deadline=0,metric=file|hops|latency|inverse-capacity]``."""
    options: Any = spec.parse_options(
        segments=2, adjacency=False, gap=1e-2, deadline=0.0, metric="file"
    )
    scheme = Segments(igp=Igp(options.pop("metric")), **options)
    if scheme.segments < 1:
        raise InputError(spec.text, "segments", "a whole number of at least 1", scheme.segments)
    for option in ("gap", "deadline"):
        if not 0 <= getattr(scheme, option) < math.inf:
            raise InputError(spec.text, option, "a number >= 0", getattr(scheme, option))
    return scheme
