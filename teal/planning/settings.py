"""Settings of `teal plan`, `upgrade` and `survey`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.app.settings import InstanceConfig, TopologyFileConfig, require, require_linear, seconds
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.option import GAP, OVERWRITE, RESUME, TOPOLOGY
from teal.routing.settings import GrowthConfig, IgpConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(InstanceConfig):
    """Answer what happens if a cable fails: solve every failure under every matrix to a certified gap.

    A cable is all links between two nodes, in both directions; its members, nodes, groups of cables and pairs of cables
    can fail too.  PDHG solves sixteen matrices at a time, each from its state without the failure; no LP solver is
    needed.  The result, also as a page, lists which failures cost most and when, and how full each link can become.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "failures": ("failures", "groups", "pairs", "max_pairs"),
        "matrices": ("split", "limit"),
        "output": ("out", "worst", "resume", "overwrite"),
        "for experts": ("gap", "epsilon", "device"),
    }

    failures: tuple[Literal["cables", "links", "nodes"], ...] = ()
    """Failures, one at a time: cables (default); links (each member of parallel links alone, in both directions);
    nodes (all links of a node: what it sends and receives is then stranded).  May be repeated."""
    groups: Path | None = None
    """Also fail groups of cables that share a risk, such as a conduit, or are out of service together: a .csv file of
    group,source,target, a .json file {"conduit 3": [["a", "b"], ["c", "d"]]}, or a .graphml file whose edges have the
    attribute srlg (names, separated by ;).  A target b#2 is the second of parallel cables alone, * all links of the
    source."""
    pairs: bool = False
    """Also fail every pair of cables."""
    max_pairs: int = 2000
    """Number of pairs, at most: those whose cables cost most alone; 0 for all.  The share covered is printed."""

    split: Literal["train", "validation", "test", "all"] = "all"
    """Which matrices: the first 70%, the next 10%, the last 20% in time order, or all."""
    limit: int = 0
    """Number of matrices, at most, the first ones in time order; 0 for all."""
    gap: Annotated[float, GAP] = 0.01
    worst: int = 20
    """Number of cases to list."""
    out: Path
    """Folder for report.html, failures.csv and .parquet, links.csv, manifest.json and failures.png."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require_linear(self, "for a plan: demands that a failure cuts off would leave the utility")
        require(self, "max_pairs", "a whole number of at least 0", self.max_pairs >= 0)
        has_cables = not self.failures or "cables" in self.failures
        require(self, "pairs", "--failures cables, which say which pairs cost most", not self.pairs or has_cables)
        require(self, "limit", "a whole number of at least 0", self.limit >= 0)
        require(self, "worst", "a whole number of at least 1", self.worst >= 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpgradeConfig(GrowthConfig, InstanceConfig):
    """Find the cheapest capacity to buy so that all traffic fits, without a failure and under each one considered.

    A scenario is one traffic matrix and one failure, or none; by default the controller computes splits anew in each.
    Certified lower bounds on the cost are given over the candidate paths and over all paths.  --path-method survivable
    gives every demand a path under every failure, where there is one.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "demands": ("demands", "matrices", "growth", "hose", "certify", "replay"),
        "failures": ("failures", "groups"),
        "growth in time": ("growth_per_year", "horizon"),
        "what is bought": ("max_utilisation", "cost", "modules", "candidates", "routing"),
        "when to stop": ("gap", "over_all_paths", "deadline"),
        "output": ("curve", "out", "prove", "overwrite"),
        "for experts": ("epsilon",),
    }

    objective: str = ObjectiveName.MAX_LINK_UTILISATION
    """Always max_link_utilisation."""
    device: str = "cpu"
    """Always cpu."""
    demands: Literal["matrices", "pipe", "hose"] = "matrices"
    """matrices of the traffic; pipe: one matrix of every pair's peak; hose: every matrix in which each node sends and
    receives at most its peak.  pipe and hose are computed both, and compared."""
    matrices: int = 24
    """Number of matrices, evenly spread over the traffic, to plan for at first; 0 for all.  The others are replayed on
    the plan under every failure, and planned for too where they do not fit."""
    hose: Path | None = None
    """For --demands hose: a .csv file of node,out,in in Gbit/s, in the place of the peaks of the traffic."""
    replay: float = 0.0
    """Share of the traffic, the latest, that is not planned for: it is replayed on the plan, without failure and under
    each, and what would be dropped is printed."""
    certify: bool = False
    """For --demands hose: also compute how full a link can be at most, under each failure, by splits fixed beforehand;
    for networks of up to some 25 nodes."""
    failures: Literal["none", "cables", "pairs"] = "cables"
    """none; cables: every single cable (all links between two nodes, both directions) fails in turn; pairs: every pair
    of cables too."""
    groups: Path | None = None
    """Also fail groups of cables that share a risk: a .csv (group,source,target), .json or .graphml file."""
    horizon: str = ""
    """With --growth-per-year: how far to plan, such as 2y, 6q or 18m from the last matrix; prints what to buy in which
    quarter."""
    cost: str = "capacity"
    """Cost of a Gbit/s: capacity (1 on every cable), length (its latency in ms), or a .csv file with the columns
    source, target, cost for every cable."""
    modules: str = ""
    """Sizes that can be bought, Gbit/s, such as 100, or with what each costs, 100=1,400=3 (in units of 1 Gbit/s times
    --cost: 100=100 is the price of single Gbit/s).  Default: any amount."""
    candidates: Path | None = None
    """New cables that can be bought: a .csv file of source,target,latency (ms) and, if they are to be limited, most
    (Gbit/s) and, if it differs from --cost, cost.  With --routing ecmp at most ten, of which every set is routed."""
    routing: Literal["optimal", "ecmp"] = "optimal"
    """optimal: splits are chosen anew in every scenario; ecmp: the IGP's shortest paths, converged after each
    failure."""
    gap: Annotated[float, GAP] = 0.01
    over_all_paths: bool = False
    """Count --gap as reached only if the cost is so close to the cheapest purchase over all paths of the network; paths
    are added in any case."""
    deadline: str = ""
    """Time after which to stop with the best so far: 30s, 5m.  Default: none."""
    curve: bool = False
    """Also find what more or less growth costs, without failures and with them, for a chart."""
    out: Path | None = None
    """Folder for upgrade.html, purchases.csv, scenarios.csv, topology.json (with what is bought) and manifest.json."""
    prove: Path | None = None
    """Folder for a proof that no purchase costs less than the bound over all paths, which Python alone checks: any
    amounts, --routing optimal, without --horizon."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        is_utilisation = self.objective == ObjectiveName.MAX_LINK_UTILISATION
        require(self, "objective", "max_link_utilisation, which is the default", is_utilisation)
        require(self, "device", "cpu, which is the default", self.device in ("cpu", "auto"))
        require(self, "matrices", "a whole number of at least 0", self.matrices >= 0)
        require(self, "replay", "a share in [0, 1)", 0 <= self.replay < 1)
        require(self, "protect", "nothing: failures are given by --failures", not self.protect)
        require(self, "class_shares", "no classes", not self.class_shares)
        require(self, "hose", "--demands hose", self.hose is None or self.demands == "hose")
        require(self, "certify", "--demands hose", not self.certify or self.demands == "hose")
        is_optimal = self.routing == "optimal"
        require(self, "routing", "optimal with --demands hose", is_optimal or self.demands != "hose")
        require(self, "over_all_paths", "--routing optimal", is_optimal or not self.over_all_paths)
        require(self, "over_all_paths", "--demands matrices or pipe", self.demands != "hose" or not self.over_all_paths)
        self.check_growth()
        require(self, "horizon", "--demands matrices or pipe", not self.horizon or self.demands != "hose")
        is_new = bool(self.candidates) and not is_optimal
        require(self, "candidates", "nothing with --horizon and --routing ecmp", not (self.horizon and is_new))
        is_provable = is_optimal and not self.modules and not self.horizon
        require(self, "prove", "--routing optimal, no --modules, no --horizon", self.prove is None or is_provable)
        _ = self.sizes
        if self.deadline:
            seconds(self.deadline, "--deadline")

    @property
    def sizes(self) -> list[tuple[float, float]]:
        """Gbit/s and price of each module; () for any amount.

        Raises:
            InputError: anything else, or a number that is not above 0.
        """
        sizes = []
        for part in filter(None, (part.strip() for part in self.modules.split(","))):
            size, _, price = part.partition("=")
            try:
                pair = float(size), float(price or size)
            except ValueError:
                raise InputError("--modules", "", "sizes such as 100 or 100=1,400=3", repr(part)) from None
            if not all(0 < number < float("inf") for number in pair):
                raise InputError("--modules", "", "sizes and prices above 0", repr(part))
            sizes.append(pair)
        return sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurveyConfig(GrowthConfig, IgpConfig, TopologyFileConfig):
    """From a network's files to answers: one command, one page.

    Reads the network and its counters or matrices, and says what was read and doubted; the traffic; the loads now and
    under each failure; when links are full; which few metrics or policies mend most; what to buy.  The page begins with
    the answer, and each section names the command that goes deeper.  An interrupted run continues with --resume.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "traffic": (
            "counters", "interfaces", "ignore_interfaces", "counter_error", "counter_unit", "history",
            "traffic", "traffic_unit",
        ),
        "routing": ("metric", "set_metric", "ucmp", "fail"),
        "failures": ("groups",),
        "growth": ("growth", "growth_per_year", "horizon", "max_utilisation"),
        "search": ("changes", "deadline"),
        "output": ("out", "resume", "overwrite"),
    }  # fmt: skip

    topology: Annotated[str, TOPOLOGY]
    out: Path
    """Folder for survey.html, and a folder or file of each command that is run."""
    counters: Path | None = None
    """Readings of interface counters, as for teal estimate; or --traffic."""
    interfaces: Path | None = None
    """With --counters: the table that leads interfaces back to links, as for teal estimate."""
    ignore_interfaces: str = ""
    """With --counters: a regular expression of the names of interfaces that are left out."""
    counter_error: float = 0.01
    """With --counters: standard deviation of a counter, as a share of it; 0.02 where polls are missing or apart."""
    counter_unit: str = ""
    """Unit of the column rate of counters, such as Mbit/s; Gbit/s by default."""
    history: str = ""
    """With --counters: past traffic matrices."""
    traffic: str = ""
    """Traffic matrices, as for teal solve; or --counters."""
    traffic_unit: str = ""
    """Unit of the rates in traffic files, such as Mbit/s; Gbit/s by default."""
    groups: Path | None = None
    """Groups of cables that fail together, beside every single cable: a .csv (group,source,target), .json or .graphml
    file."""
    changes: int = 5
    """Number of links whose metrics may change, at most."""
    deadline: str = "1m"
    """Length of each search, of metrics, of policies and of purchases: 30s, 5m."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or for traffic from two sources or none."""
        self.check_growth()
        is_one = (self.counters is None) == bool(self.traffic)
        require(self, "traffic", "either --traffic or --counters", is_one)
        for field in ("interfaces", "ignore_interfaces", "history", "counter_unit"):
            require(self, field, "nothing without --counters", self.counters is not None or not getattr(self, field))
        require(self, "counter_error", "a number in (0, 1)", 0 < self.counter_error < 1)
        require(self, "changes", "a whole number of at least 1", self.changes >= 1)
        require(self, "ucmp", "nothing: the search for metrics divides evenly", not self.ucmp)
        require(self, "deadline", "a second or more", seconds(self.deadline, "--deadline") >= 1)
