"""Scheme ``segments``: split ratios over segment lists on the IGP's shortest paths, with a gap to
the best lists of a maximum length.

The splits range over the scheme's own segment lists: the gap is that to the best lists, and the
value may exceed the optimum over the candidate paths.  The failed links of the problem are failed
in the IGP, too, which has converged without them.
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
    """Scheme ``segments``: column generation over segment lists for all matrices of a problem.

    Attributes:
        segments: maximum number of segments of a list, including the one to the target.
        adjacency: whether a list may contain adjacency segments (single links).
        gap: certified gap to the optimum over all such lists at which the solver stops.
        deadline: time limit of a batch, seconds; 0 for none.
        igp: computes the shortest paths.
    """

    segments: int = 2
    adjacency: bool = False
    gap: float = 1e-2
    deadline: float = 0.0
    igp: Igp = dataclasses.field(default_factory=Igp)

    def solve(self, problem: Problem) -> Allocation:
        """Return the allocation over generated segment lists; all matrices are solved together, and
        each one is reported with an equal part of the time.

        Args:
            problem: B matrices; its failed links have also failed in the IGP.
        """
        return solve_over_lists(
            problem,
            self.igp.of(problem),
            segments=self.segments,
            adjacencies=self.adjacency,
            gap=self.gap,
            deadline=Deadline.after(self.deadline or math.inf),
        ).allocation


def make(spec: Spec, model: Path | None) -> Segments:
    """Return the scheme of a text such as ``segments:segments=3,gap=0.005``.

    The options and their defaults are segments=2, adjacency=false, gap=0.01, deadline=0 (seconds; 0
    for none) and metric=file; the metric is file, hops, latency or inverse-capacity.

    Args:
        spec: name and options.
        model: unused; the scheme has no model.

    Raises:
        InputError: an option out of its range.
    """
    options: Any = spec.parse_options(
        segments=2, adjacency=False, gap=1e-2, deadline=0.0, metric="file"
    )
    scheme = Segments(igp=Igp(options.pop("metric")), **options)
    if scheme.segments < 1:
        raise InputError(spec.text, "segments", "an integer >= 1", scheme.segments)
    for option in ("gap", "deadline"):
        if not 0 <= getattr(scheme, option) < math.inf:
            raise InputError(spec.text, option, "a number >= 0", getattr(scheme, option))
    return scheme
