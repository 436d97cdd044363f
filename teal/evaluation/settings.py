"""Settings of `teal evaluate`, `report`, `audit`, `bench` and `sweep`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from teal.app.settings import (
    InstanceConfig,
    ProgramConfig,
    ProgramFileConfig,
    TrafficFileConfig,
    require,
    require_linear,
    require_one_program,
    seconds,
)
from teal.errors import InputError, did_you_mean
from teal.learning.settings import TrainConfig
from teal.option import OVERWRITE, RESUME

# Schemes without --scheme.
DEFAULT_SCHEMES = ("teal", "price-gnn", "lp-all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworksConfig(TrafficFileConfig):
    """Networks and their traffic."""

    topology: tuple[str, ...]
    """A node-link .json, .graphml or SNDlib .xml file, topohub:GROUP/NAME[,capacity=GBPS], or b4;
    repeat for more."""
    traffic: tuple[str, ...]
    """An SNDlib archive (.tgz or folder), a .npz, .csv or .parquet file, or
    gravity:seed=0,count=200,load=4: one for all topologies, or one for each, in their order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions(ProgramFileConfig):
    """Schemes, models, and which matrices they allocate."""

    scheme: tuple[str, ...] = ()
    """A scheme with its options; repeat for more."""
    model: tuple[Path, ...] = ()
    """Folder of a trained model, or the name of one that comes with Teal: flow (for teal),
    universal (for price-gnn), which are used without it.  One for all topologies, or one for each;
    none for a topology without a model."""
    split: Literal["train", "validation", "test", "all"] = "test"
    """Which matrices: the first 70%, the next 10%, the last 20% in time order, or all."""
    limit: int = 0
    """Number of matrices, at most; 0 for all."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(self, "limit", "an integer >= 0", self.limit >= 0)

    @property
    def models(self) -> tuple[Path | None, ...]:
        """The models that are named, None for none; one None where none is named."""
        return tuple(None if str(model) == "none" else model for model in self.model) or (None,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(StudyOptions, NetworksConfig):
    """A study of several networks, and a folder for its results."""

    out: Path
    """Folder for the results."""
    wide: bool = False
    """Print all columns; without it five that fit 80 characters.  The files have all in any
    case."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or settings that do not go together."""
        super().__post_init__()
        count = len(self.topology)
        for field in ("topology", "traffic"):
            require(self, field, "at least one", bool(getattr(self, field)))
        for field in ("traffic", "model"):
            num_values = len(getattr(self, field))
            require(
                self,
                field,
                f"one, or one for each of the {count} topologies",
                num_values in (0, 1, count),
            )
        require(self, "paths", "a single topology", count == 1 or not self.paths)

    def instances(self) -> list[InstanceConfig]:
        """The settings of each topology."""
        shared = {
            f.name: getattr(self, f.name)
            for base in (ProgramConfig, TrafficFileConfig)
            for f in dataclasses.fields(base)
        }
        traffic = self.traffic if len(self.traffic) > 1 else self.traffic * len(self.topology)
        return [
            InstanceConfig(topology=where, traffic=what, **shared)
            for where, what in zip(self.topology, traffic, strict=True)
        ]

    def models_by_network(self) -> tuple[Path | None, ...]:
        """The model of each topology, None for none; one for all if no more is given."""
        return self.models if len(self.models) > 1 else self.models * len(self.topology)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateOptions(StudyOptions):
    """Which schemes are compared, on which matrices, and under which changes."""

    scheme: tuple[str, ...] = ()
    """A scheme with its options, such as teal:repair=admm,iterations=5 or lp-all:solver=highs;
    repeat for more; all for every scheme that suits the objective.  Default: teal, price-gnn and
    lp-all."""
    limit: int = 0
    """Number of matrices, at most, evenly spread over the split; 0 for all."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more.  Models are not changed; a
    demand without a candidate path that is left gets one, where the network still connects it."""
    failures: str = ""
    """Also evaluate with failed links, both directions, drawn for each matrix: numbers or shares,
    such as 1,2,5%."""
    noise: str = ""
    """Also evaluate with Gaussian noise; multiples of the variance of each demand's changes over
    time: 2,5,10,20."""
    spatial: str = ""
    """Also evaluate with moved demand; shares of the volume for the largest tenth of the demands:
    80,60,40,20%."""
    scale: str = ""
    """Also evaluate with all demands multiplied by factors: 0.5,2,4."""
    churn: str = ""
    """Also evaluate where only a share of the volume may move against the optimum of the matrix
    before: 1,2,5,10%. Schemes that know no limit break it, and are infeasible there."""
    draws: int = 1
    """Number of random draws of failures and noise for each level and matrix."""
    online: bool = False
    """Also evaluate in time: while a scheme computes, its last allocation carries min(new demand,
    old flow), and a scheme slower than the interval skips some.  Takes consecutive matrices, the
    first --limit of the split."""
    interval: str = ""
    """For --online: time from one matrix to the next, such as 5m.  Default: that of the traffic, or
    5m."""
    time_limit: str = "10m"
    """Stop running a scheme on a network once it has taken longer for one matrix; its rows say
    so."""
    prove: bool = False
    """Prove every allocation in integers (as teal certify does), and write the proved gap to
    each row."""
    seed: int = 0
    """Seed of failures, noise, and the flash crowds of --race."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require(self, "seed", "an integer >= 0", self.seed >= 0)
        require(self, "draws", "an integer >= 1", self.draws >= 1)
        seconds(self.time_limit, "--time-limit")
        if self.interval:
            require(
                self, "interval", "a duration above 0", seconds(self.interval, "--interval") > 0
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(EvaluateOptions, StudyConfig):
    """Run schemes on the same matrices, unchanged and under failures, noise and growth, and compare
    them.

    Every scheme gets the same matrices, failures and noise and is measured by the same validator
    and clock; nothing is retrained.  The results are in OUT, with report.html to look at.  An
    interrupted run continues with --resume.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "schemes": ("scheme", "model", "time_limit"),
        "matrices": ("split", "limit"),
        "changes of matrices and networks": (
            "fail",
            "failures",
            "noise",
            "spatial",
            "scale",
            "churn",
            "draws",
            "seed",
            "online",
            "interval",
        ),
        "another protocol": ("race",),
        "output": ("out", "prove", "wide", "resume", "overwrite"),
        "for experts": ("device",),
    }

    race: bool = False
    """Measure time to certified gaps instead, of PDHG from nothing and from the matrix before, of
    each scheme, and of PDHG from each model; for the next interval, a flash crowd, failed links,
    and no earlier state.  --limit 0: 3."""
    out: Path
    """Folder for report.html, results.csv and .parquet, manifest.json and plots; with --race,
    race.csv and race.png."""
    resume: Annotated[bool, RESUME] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or settings that do not go together."""
        super().__post_init__()
        require(self, "fail", "a single topology", len(self.topology) == 1 or not self.fail)
        if self.race:
            for field in (
                "fail",
                "failures",
                "noise",
                "spatial",
                "scale",
                "churn",
                "online",
                "resume",
            ):
                require(
                    self, field, "no value: --race has its own situations", not getattr(self, field)
                )
            require_one_program(self, "with --race")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditConfig(InstanceConfig):
    """Search for the demands under which a scheme loses most against the optimum.

    The demands stay near the matrices that are given.  Each loss that is found is proven: the
    scheme's allocation and a better one exist.  Ctrl-C ends the search with the worst so far.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "search": ("scheme", "model", "box", "up_to", "hose", "measure", "time_budget", "seed"),
        "output": ("out", "overwrite"),
        "for experts": ("device",),
    }

    scheme: tuple[str, ...]
    """The scheme, with its options, as in evaluate; repeat for the mean of several, such as one
    with several seeds."""
    model: Path | None = None
    """Folder of a trained model, for schemes that take one."""
    box: float = 0.5
    """Demands lie between (1 - BOX) times their least and (1 + BOX) times their largest rate in the
    matrices."""
    up_to: float = 0.0
    """Demands lie between 0 and this share of the mean capacity of a link, whatever the matrices;
    0: see --box."""
    hose: bool = False
    """Also keep what each node sends and receives in total within the largest sums of the
    matrices."""
    measure: Literal["optimum", "capacity"] = "optimum"
    """Whole of which a loss is a share: the optimum, or the sum of all capacities."""
    time_budget: str = "1m"
    """Length of the search: 90s, 10m, 1h."""
    seed: int = 0
    """Seed of the search."""
    out: Path
    """Folder for worst.csv (a traffic matrix, as evaluate and solve read it), losses.csv,
    losses.png, manifest.json."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        super().__post_init__()
        require_linear(self, "for an audit, which measures flow")
        require(self, "box", "a number >= 0", self.box >= 0)
        require(self, "scheme", "at least one", bool(self.scheme))
        require(self, "up_to", "a number >= 0", self.up_to >= 0)
        require(self, "seed", "an integer >= 0", self.seed >= 0)
        seconds(self.time_budget, "--time-budget")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Run a scheme on the frozen set of problems, check results of any programs, and rank them.

    The set is made in its folder where it is not there yet: networks that come with Teal, matrices
    and failures of fixed seeds, certified optima, in seconds; a content key says whether it is the
    one that others have.  Four tracks: known (a matrix, as much flow as possible), failures (a
    cable down), next (the matrix after those that are known, least utilisation), unsplittable (one
    path a demand).  A result file has rows case,source,target,path,share, a path as names of nodes
    joined by |.  The check is plain arithmetic: loads, capacities, shares.  A case that is missing
    or not valid scores 0.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "problems": ("set", "network"),
        "results": ("scheme", "model", "results"),
        "output": ("out", "prove", "overwrite"),
    }

    set: Path
    """Folder of the set: set.json and each network's topology (.json) and matrices (.npz)."""
    network: tuple[str, ...] = ()
    """Only this network, where the set is made (b4, geant, germany50, south-america); may be
    repeated.  Default: all."""
    scheme: tuple[str, ...] = ()
    """Scheme or hedge with its options, as in evaluate, to run on the set; package.module:factory
    for one of your own; repeat for more.  Its results are written to OUT, with the seconds of each
    case in a file beside them."""
    model: Path | None = None
    """Folder of a trained model, for schemes that take one."""
    results: tuple[Path, ...] = ()
    """Result file of a program, whose name without .csv is the program's; repeat for several."""
    out: Path | None = None
    """Folder for scores.csv, report.html and the results of --scheme."""
    prove: bool = False
    """Also write a proof of every valid result to OUT/proofs: what it reaches, and a bound on what
    any program can, with a checker of one file that needs nothing but Python."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for settings that do not go together."""
        for field in ("scheme", "prove"):
            has_folder = self.out is not None or not getattr(self, field)
            require(self, field, "--out beside it", has_folder)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Make one report of several evaluations: a self-contained page with tables, charts and maps,
    or figures.
    """

    results: tuple[Path, ...]
    """Folder written by teal evaluate or teal next-interval; repeat for more of the same kind."""
    out: Path | None = None
    """Write the report to this .html file."""
    figures: Path | None = None
    """Write every chart into this folder, as .svg and .pdf for papers, and the tables, those of
    paired differences too, as tables.md, tables.tex (booktabs) and tables.csv."""
    columns: str = ""
    """Columns of these tables, and not of OUT, by their headings, separated by semicolons, such as
    "satisfied; of LP-all; of LP-all, 95%; time"; all without it."""
    label: tuple[str, ...] = ()
    """SCHEME=TEXT, what a scheme is called in these charts and tables, and not in OUT; repeat for
    more."""
    overwrite: bool = False
    """Replace OUT, or the files of the same names in FIGURES, if they exist."""

    def __post_init__(self) -> None:
        """Raise InputError if there is nothing to write."""
        require(
            self,
            "out",
            "a file, or --figures with a folder",
            self.out is not None or self.figures is not None,
        )
        for field in ("columns", "label"):
            expected = "none without --figures, whose tables and charts it is for"
            require(self, field, expected, self.figures is not None or not getattr(self, field))


_FIXED = ("out", "resume", "overwrite", "seed", "topology", "traffic", "workers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(TrainConfig):
    """Train with several settings and seeds, and compare: means with 95% confidence intervals over
    the seeds.

    Every run is what `teal train` would do, then evaluated on test matrices; all settings of train
    apply to all runs. An interrupted sweep goes on with --resume.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sweep": ("vary", "seeds", "limit"),
        **TrainConfig.GROUPS,
    }

    vary: tuple[str, ...] = ()
    """A setting of train and its values: learning_rate=1e-3,3e-3; repeat for every combination of
    several settings."""
    seeds: int = 3
    """Number of runs of each combination, with the seeds SEED, SEED + 1, ..."""
    limit: int = 20
    """Number of test matrices to evaluate on, at most, evenly spread; 0 for all."""
    resume: Annotated[bool, RESUME] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or a setting that train does not have."""
        super().__post_init__()
        require(self, "seeds", "an integer >= 1", self.seeds >= 1)
        require(self, "limit", "an integer >= 0", self.limit >= 0)
        require(self, "workers", "0: runs of a sweep use this process", self.workers == 0)
        for _ in self.combinations():
            pass

    def combinations(self) -> Iterator[dict[str, Any]]:
        """The values of the varied settings, in the order in which they are run.

        Raises:
            InputError: an unknown setting, or a value of another type.
        """
        names = {
            field.name: field
            for field in dataclasses.fields(TrainConfig)
            if field.name not in _FIXED
        }
        axes: list[list[tuple[str, Any]]] = []
        for text in self.vary:
            name, _, values = text.partition("=")
            name = name.strip().replace("-", "_")
            name = "from_" if name == "from" else name
            if name not in names or not values:
                raise InputError(
                    "--vary", "", f"SETTING=A,B of train{did_you_mean(name, names)}", repr(text)
                )
            axes.append(
                [(name, self._value(name, value.strip(), text)) for value in values.split(",")]
            )
        for combination in itertools.product(*axes):
            yield dict(combination)

    def _value(self, name: str, text: str, where: str) -> Any:
        now = getattr(self, name)
        try:
            if isinstance(now, bool):
                return {"true": True, "false": False}[text.lower()]
            if name == "num_paths":
                return text if text.startswith("auto") else int(text)
            if isinstance(now, int | float):
                return type(now)(text)
            return float(text) if name == "calibrate" else text
        except (ValueError, KeyError):
            raise InputError(
                "--vary", name, f"a value like {now!r}", f"{text!r} in {where!r}"
            ) from None
