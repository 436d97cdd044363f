"""Settings of `teal segments`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import ObjectiveConfig, require, seconds, share
from teal.objectives import Objective
from teal.option import GAP, MAX_ITERATIONS, OVERWRITE, TARGET_UTILISATION, check_options
from teal_ip.routing.settings import IgpConfig, RoutedConfig

# Options that limit the number of policies; at most one of them may be set.
_FEW = ("fewest_policies", "target_utilisation", "at_most")
# Requirement of the options for max_link_utilisation alone, in messages.
_BALANCED = "--objective max_link_utilisation beside it"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentsOptions(IgpConfig, ObjectiveConfig):
    """Search space of the segment lists, matrices and failures that they must serve, and stopping
    criteria.
    """

    index: int = 0
    """Index of the matrix, counted from 0."""
    igp_alone: bool = False
    """Evaluate the IGP's shortest paths without segment lists, beside the bounds over lists."""
    max_segments: int = 2
    """Maximum number of segments of a list, including the one to the target; limited by the
    routers' maximum SID depth (MSD).  2 is one midpoint."""
    flex_algo: str = ""
    """Flexible algorithm (RFC 9350), such as 128:metric=delay,exclude=red: segments follow its
    shortest paths, and all demands use it.  Its metric is igp, delay or te; exclude, include-any
    and include-all take names of affinities."""
    adjacency: bool = False
    """Also use adjacency segments: single links, whatever the metrics are."""
    matrices: int = 1
    """With max_link_utilisation: one set of lists for all matrices, optimised for this many at
    first, those that are worst under some failure; the others are replayed, and added where they
    exceed the result.  0 for all at once, 1 for --index alone."""
    survive: Literal["none", "cables"] = "none"
    """With max_link_utilisation: one set of lists that also serves the failure of any single cable,
    after the IGP has converged without it."""
    groups: Path | None = None
    """With max_link_utilisation: one set of lists that also serves the failure of each shared-risk
    group of cables: a .csv (group,source,target), .json or .graphml file."""
    fewest_policies: str = ""
    """With max_link_utilisation: minimise the number of demands with a policy, subject to a
    utilisation within this share of the best, such as 1%."""
    target_utilisation: Annotated[float, TARGET_UTILISATION] = 0.0
    at_most: int = 0
    """With max_link_utilisation: at most this many demands with a policy; the result is the least
    utilisation found, with a bound.  0 for any number."""
    transit: bool = False
    """With --fewest-policies, --target-utilisation or --at-most: a policy steers all traffic that
    crosses its router towards its endpoint, wherever it enters (IGP shortcut; autoroute), so that
    fewer policies suffice."""
    one_list: bool = False
    """With max_link_utilisation: one segment list per demand, without splits; with --matrices,
    --survive or --transit not together with --fewest-policies or --target-utilisation."""
    gap: Annotated[float, GAP] = 0.01
    deadline: str = ""
    """Time limit, after which the best lists so far are returned: 500ms, 5s, 1m.  Default: none."""
    max_iterations: Annotated[int, MAX_ITERATIONS] = 10_000

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or options that exclude each other."""
        ObjectiveConfig.__post_init__(self)
        check_options(self)
        require(self, "objective", "an objective without classes", self.objective != "priority")
        without_files = not Objective(self.objective).rules.needs_functions
        require(self, "objective", "an objective other than bandwidth_functions", without_files)
        require(self, "index", "an integer >= 0", self.index >= 0)
        require(self, "matrices", "an integer >= 0", self.matrices >= 0)
        require(self, "at_most", "an integer >= 0", self.at_most >= 0)
        require(self, "max_segments", "an integer >= 1", self.max_segments >= 1)
        require(self, "index", "0 with --matrices", not self.index or self.matrices == 1)
        if self.deadline:
            seconds(self.deadline, "--deadline")
        self._check_lists()
        self._check_few()

    def _check_lists(self) -> None:
        is_balanced = self.objective == "max_link_utilisation" and not self.igp_alone
        is_one = self.matrices == 1 and self.survive == "none" and self.groups is None
        for field in ("matrices", "survive", "groups"):
            require(self, field, _BALANCED, is_balanced or is_one)
        is_free = not (self.is_static and self.adjacency)
        require(self, "adjacency", "a single matrix without failures and --transit", is_free)
        is_two = not self.is_static or self.max_segments == 2
        require(self, "max_segments", "2 with --matrices, --survive and --transit", is_two)
        require(self, "flex_algo", "no --ucmp beside it", not (self.flex_algo and self.ucmp))

    def _check_few(self) -> None:
        is_balanced = self.objective == "max_link_utilisation" and not self.igp_alone
        is_two = self.max_segments == 2 and not self.adjacency
        for field in (*_FEW, "one_list"):
            is_given = bool(getattr(self, field))
            require(self, field, _BALANCED, is_balanced or not is_given)
            require(self, field, "two segments without --adjacency", is_two or not is_given)
        is_few = any(getattr(self, field) for field in _FEW)
        expected = "--fewest-policies, --target-utilisation or --at-most beside it"
        require(self, "transit", expected, is_few or not self.transit)
        is_one = self.one_list and not self.is_static
        require(
            self, "at_most", "0 with --one-list of a single matrix", not (self.at_most and is_one)
        )
        is_fewest = bool(self.fewest_policies or self.target_utilisation)
        expected = (
            "nothing with --fewest-policies and --target-utilisation beside --matrices, --survive "
            "or --transit"
        )
        require(self, "one_list", expected, not (self.one_list and self.is_static and is_fewest))
        for first, second in itertools.combinations(_FEW, 2):
            is_single = not (getattr(self, first) and getattr(self, second))
            require(self, second, f"nothing with --{first.replace('_', '-')}", is_single)
        if self.fewest_policies:
            share(self.fewest_policies, "--fewest-policies")

    @property
    def is_static(self) -> bool:
        """Whether one set of lists must serve several matrices or failures, or transit traffic
        (:mod:`teal_ip.segments.static_lists`).
        """
        return (
            self.matrices != 1 or self.survive != "none" or self.groups is not None or self.transit
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentsConfig(SegmentsOptions, RoutedConfig):
    """Optimise segment lists over the IGP's shortest paths, with certified gaps to the best lists
    and to the best paths.

    Segments follow the IGP's shortest paths; all lists of --max-segments are considered.  With
    --igp-alone nothing is optimised: the report has the value of the shortest paths and the same
    bounds.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "matrices and failures": ("index", "matrices", "fail", "survive", "groups"),
        "program": ("objective", "weights"),
        "routing": ("metric", "set_metric", "ucmp", "flex_algo", "igp_alone"),
        "lists": ("max_segments", "adjacency", "one_list"),
        "few policies": ("fewest_policies", "target_utilisation", "at_most", "transit"),
        "when to stop": ("gap", "deadline", "max_iterations"),
        "output": ("out", "overwrite"),
    }

    out: Path | None = None
    """Write the lists to this .json file, which teal simulate --policies reads, and teal export
    turns into configuration."""
    overwrite: Annotated[bool, OVERWRITE] = False
