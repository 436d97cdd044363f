"""Settings of `teal segments`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import ObjectiveConfig, require, seconds, share
from teal.errors import InputError
from teal.objectives import Objective
from teal.option import GAP, MAX_ITERATIONS, OVERWRITE, TARGET_UTILISATION, check_options
from teal_ip.routing.settings import IgpConfig, RoutedConfig

# Options that limit the number of policies; at most one of them may be set.
_POLICY_LIMITS = ("fewest_policies", "target_utilisation", "at_most")
# Fault of options that need the objective max_link_utilisation, in messages.
_NEEDS_MIN_MAX = "works only with --objective max_link_utilisation and without --igp-alone"


def _check(field: str, problem: str, is_valid: bool, remedy: str = "") -> None:
    """Raise InputError unless an option fits the other options.

    Args:
        field: field whose option the message names.
        problem: fault of the combination, as a clause about the option.
        is_valid: whether the combination is valid.
        remedy: what to do, in the imperative; ``""`` if the problem says it.
    """
    if not is_valid:
        raise InputError.invalid(f"--{field.replace('_', '-')}", "", problem, remedy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentsOptions(IgpConfig, ObjectiveConfig):
    """Search space of the segment lists, matrices and failures that they must serve, and stopping
    criteria.
    """

    index: int = 0
    """Index of the matrix, counted from 0."""
    igp_alone: bool = False
    """Evaluate the IGP's shortest paths without segment lists, and print the bounds over lists."""
    max_segments: int = 2
    """Maximum number of segments of a list, including the one to the target; limited by the
    routers' maximum SID depth (MSD).  2 is one midpoint."""
    flex_algo: str = ""
    """Flexible algorithm (RFC 9350), such as 128:metric=delay,exclude=red: segments follow its
    shortest paths, and all demands use it.  Its metric is igp, delay or te; exclude, include-any
    and include-all take names of affinities."""
    adjacency: bool = False
    """Also use adjacency segments: single links, independent of the metrics."""
    matrices: int = 1
    """With max_link_utilisation: one set of lists for all matrices.  The search begins with this
    many matrices, the worst ones under some failure; the lists are evaluated on the others, and
    those that exceed the result are added.  0 for all at once, 1 for --index alone."""
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
    """With max_link_utilisation: minimise the utilisation with at most this many demands with a
    policy; the report has a bound.  0 for any number."""
    transit: bool = False
    """With --fewest-policies, --target-utilisation or --at-most: a policy steers all traffic that
    crosses its router towards its endpoint, wherever it enters (IGP shortcut; autoroute), so that
    fewer policies suffice."""
    one_list: bool = False
    """With max_link_utilisation: one segment list per demand, without splits; with --matrices,
    --survive or --transit it cannot be combined with --fewest-policies or --target-utilisation."""
    gap: Annotated[float, GAP] = 0.01
    deadline: str = ""
    """Time limit, after which the best lists so far are returned: 500ms, 5s, 1m.  Default: none."""
    max_iterations: Annotated[int, MAX_ITERATIONS] = 10_000

    def __post_init__(self) -> None:
        """Raise InputError for a value out of its range, or options that exclude each other."""
        ObjectiveConfig.__post_init__(self)
        check_options(self)
        require(self, "objective", "an objective without classes", self.objective != "priority")
        is_without_functions = not Objective(self.objective).rules.needs_functions
        require(
            self, "objective", "an objective other than bandwidth_functions", is_without_functions
        )
        require(self, "index", "an integer >= 0", self.index >= 0)
        require(self, "matrices", "an integer >= 0", self.matrices >= 0)
        require(self, "at_most", "an integer >= 0", self.at_most >= 0)
        require(self, "max_segments", "an integer >= 1", self.max_segments >= 1)
        is_one_matrix = not self.index or self.matrices == 1
        _check("index", "cannot be combined with --matrices", is_one_matrix, "drop one of them")
        if self.deadline:
            seconds(self.deadline, "--deadline")
        self._check_lists()
        self._check_policy_limits()

    def _check_lists(self) -> None:
        """Raise InputError for list options that do not fit matrices, failures or objective."""
        minimises_utilisation = self.objective == "max_link_utilisation" and not self.igp_alone
        is_one_matrix = self.matrices == 1 and self.survive == "none" and self.groups is None
        for field in ("matrices", "survive", "groups"):
            _check(field, _NEEDS_MIN_MAX, minimises_utilisation or is_one_matrix)
        static_options = "--matrices, --survive, --groups or --transit"
        is_valid = not (self.is_static and self.adjacency)
        _check("adjacency", f"cannot be combined with {static_options}", is_valid)
        is_valid = not self.is_static or self.max_segments == 2
        _check("max_segments", f"must be 2 with {static_options}", is_valid)
        is_valid = not (self.flex_algo and self.ucmp)
        _check("flex_algo", "cannot be combined with --ucmp", is_valid, "drop one of them")

    def _check_policy_limits(self) -> None:
        """Raise InputError for limits on policies that do not fit the other options."""
        # Each of these options needs the objective max_link_utilisation and lists of one midpoint.
        minimises_utilisation = self.objective == "max_link_utilisation" and not self.igp_alone
        has_one_midpoint = self.max_segments == 2 and not self.adjacency
        for field in (*_POLICY_LIMITS, "one_list"):
            is_unset = not getattr(self, field)
            _check(field, _NEEDS_MIN_MAX, minimises_utilisation or is_unset)
            _check(
                field, "needs --max-segments 2 without --adjacency", has_one_midpoint or is_unset
            )
        # Transit policies need a limit on their number; one list excludes some of the limits.
        has_policy_limit = any(getattr(self, field) for field in _POLICY_LIMITS)
        _check(
            "transit",
            "needs a limit on the number of policies",
            has_policy_limit or not self.transit,
            "add --fewest-policies, --target-utilisation or --at-most",
        )
        is_one_list_alone = self.one_list and not self.is_static
        is_valid = not (self.at_most and is_one_list_alone)
        _check("at_most", "cannot be combined with --one-list for a single matrix", is_valid)
        is_fewest = bool(self.fewest_policies or self.target_utilisation)
        _check(
            "one_list",
            "cannot be combined with --fewest-policies or --target-utilisation if --matrices, "
            "--survive, --groups or --transit is set",
            not (self.one_list and self.is_static and is_fewest),
        )
        # At most one of the limits is set.
        for first, second in itertools.combinations(_POLICY_LIMITS, 2):
            is_single = not (getattr(self, first) and getattr(self, second))
            problem = f"cannot be combined with --{first.replace('_', '-')}"
            _check(second, problem, is_single, "drop one of them")
        # Parse the share, to raise InputError for invalid text.
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
