"""Settings of ``teal upgrade``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import (
    CalibratedConfig,
    CandidateConfig,
    ClassConfig,
    NetworkConfig,
    ProgramFileConfig,
    TrafficFileConfig,
    require,
    seconds,
)
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.option import GAP, OVERWRITE
from teal_ip.routing.settings import GrowthConfig


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
class UpgradeOptions(
    GrowthConfig, CalibratedConfig, ClassConfig, CandidateConfig, TrafficFileConfig
):
    """Demands to plan for, capacity that can be bought, and stopping criteria."""

    demands: Literal["matrices", "pipe", "hose"] = "matrices"
    """Demands to plan for.  matrices: those of the traffic; pipe: one matrix with the peak of every
    pair; hose: every matrix in which each node sends and receives at most its peak.  With hose, the
    plan for pipe is computed, too, for comparison."""
    matrices: int = 24
    """Number of matrices, evenly spread over the traffic, to plan for at first; 0 for all.  The
    plan is evaluated on the others under every failure; those that do not fit are added."""
    hose: Path | None = None
    """For --demands hose: a .csv file of node,out,in in Gbit/s, instead of the peaks of the
    traffic."""
    replay: float = 0.0
    """Share of the traffic, the latest, that is held back from planning.  The plan is evaluated on
    it, without failure and under each, and the dropped traffic is reported."""
    certify: bool = False
    """For --demands hose: also certify the largest utilisation of any link, under each failure, for
    fixed splits; for networks of up to about 25 nodes."""
    failures: Literal["none", "cables", "pairs"] = "cables"
    """Failures to plan for.  none; cables: failure of every single cable (all links between two
    nodes, both directions); pairs: also of every pair of cables."""
    groups: Path | None = None
    """Shared-risk groups of cables that also fail: a .csv (group,source,target), .json or .graphml
    file."""
    horizon: str = ""
    """With --growth-per-year: planning horizon, such as 2y, 6q or 18m from the last matrix; the
    result is an expansion by quarter."""
    cost: str = "capacity"
    """Cost of a Gbit/s: capacity (1 on every cable), length (its latency in ms), or a .csv file
    with the columns source, target, cost for every cable."""
    modules: str = ""
    """Module sizes, Gbit/s, such as 100, or with prices, such as 100=1,400=3.  A price is in units
    of --cost for 1 Gbit/s, so 100=100 costs as much as 100 single Gbit/s.  Default: any amount."""
    candidates: Path | None = None
    """New cables that can be built: a .csv file of source,target,latency (ms) and optionally most
    (limit, Gbit/s) and cost (if it differs from --cost).  With --routing ecmp at most ten, since
    every subset of them is routed."""
    routing: Literal["optimal", "ecmp"] = "optimal"
    """Routing of the demands.  optimal: splits are reoptimised in every scenario; ecmp: the IGP's
    shortest paths, converged after each failure."""
    gap: Annotated[float, GAP] = 0.01
    over_all_paths: bool = False
    """Require --gap to the cheapest expansion over all paths of the network, not only over the
    candidate paths; paths are added in any case."""
    deadline: str = ""
    """Time limit, after which the best plan so far is returned: 30s, 5m.  Default: none."""
    curve: bool = False
    """Also compute the cost at other growth factors, without and with failures, for a chart."""

    def __post_init__(self) -> None:
        """Raise InputError for a value out of its range, or options that exclude each other."""
        # Ranges, and options that need, or exclude, a hose or optimal routing.
        CandidateConfig.__post_init__(self)
        require(self, "matrices", "an integer >= 0", self.matrices >= 0)
        require(self, "replay", "a share in [0, 1)", 0 <= self.replay < 1)
        is_hose = self.demands == "hose"
        for field in ("hose", "certify"):
            _check(field, "works only with --demands hose", is_hose or not getattr(self, field))
        is_optimal = self.routing == "optimal"
        _check("routing", "must be optimal with --demands hose", is_optimal or not is_hose)
        is_unset = not self.over_all_paths
        _check("over_all_paths", "works only with --routing optimal", is_optimal or is_unset)
        _check("over_all_paths", "cannot be combined with --demands hose", not is_hose or is_unset)
        # Growth and horizon, module sizes (parsed for their errors), and the time limit.
        self.check_growth()
        is_valid = not self.horizon or not is_hose
        _check("horizon", "cannot be combined with --demands hose", is_valid)
        routes_new_cables = bool(self.candidates) and not is_optimal
        is_valid = not (self.horizon and routes_new_cables)
        _check("candidates", "cannot be combined with --horizon and --routing ecmp", is_valid)
        _ = self.sizes
        if self.deadline:
            seconds(self.deadline, "--deadline")

    @property
    def program(self) -> ProgramFileConfig:
        """Settings of files, traffic and paths, with the objective of load balancing."""
        bases = CalibratedConfig, ClassConfig, CandidateConfig, TrafficFileConfig
        shared = {
            field.name: getattr(self, field.name)
            for base in bases
            for field in dataclasses.fields(base)
        }
        return ProgramFileConfig(
            objective=ObjectiveName.MAX_LINK_UTILISATION, device="cpu", **shared
        )

    @property
    def sizes(self) -> list[tuple[float, float]]:
        """Gbit/s and price of each module size, in the order of ``modules``; an empty list if any
        amount can be added.

        Raises:
            InputError: another format, or a number that is not above 0.
        """
        sizes = []
        for text in filter(None, (text.strip() for text in self.modules.split(","))):
            size, _, price = text.partition("=")
            try:
                pair = float(size), float(price or size)
            except ValueError:
                raise InputError(
                    "--modules", "", "sizes such as 100 or 100=1,400=3", repr(text)
                ) from None
            if not all(0 < number < float("inf") for number in pair):
                raise InputError("--modules", "", "sizes and prices above 0", repr(text))
            sizes.append(pair)
        return sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpgradeConfig(UpgradeOptions, NetworkConfig):
    """Find the cheapest capacity expansion with which all traffic fits, without failure and under
    each considered failure.

    A scenario is one traffic matrix and one failure, or none; by default splits are reoptimised in
    each.  Certified lower bounds on the cost hold over the candidate paths and over all paths.
    --path-method survivable gives every demand a path under every failure, if there is one.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "demands": ("demands", "matrices", "growth", "hose", "replay"),
        "failures": ("failures", "groups"),
        "growth in time": ("growth_per_year", "horizon"),
        "what is bought": ("max_utilisation", "cost", "modules", "candidates", "routing"),
        "when to stop": ("gap", "over_all_paths", "deadline"),
        "output": ("curve", "out", "prove", "overwrite"),
        "for experts": ("certify", "latency_limits"),
    }

    out: Path | None = None
    """Folder for upgrade.html, purchases.csv, scenarios.csv, topology.json (the expanded network)
    and manifest.json."""
    prove: Path | None = None
    """Folder for a proof of the bound over all paths, which a checker in plain Python verifies.
    Requires --routing optimal, and neither --modules nor --horizon."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a value out of its range, or options that exclude each other."""
        super().__post_init__()
        is_provable = self.routing == "optimal" and not self.modules and not self.horizon
        problem = "a proof needs --routing optimal, no --modules and no --horizon"
        _check("prove", problem, self.prove is None or is_provable)
