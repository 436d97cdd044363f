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
from teal.option import OVERWRITE, RESUME
from teal_study.learning.settings import TrainConfig

# Schemes that are compared without --scheme.
DEFAULT_SCHEMES = ("teal", "price-gnn", "lp-all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworksConfig(TrafficFileConfig):
    """Settings that name the networks of a study, and their traffic."""

    topology: tuple[str, ...]
    """A node-link .json, .graphml or SNDlib .xml file, topohub:GROUP/NAME[,capacity=GBPS], or b4;
    repeat for more."""
    traffic: tuple[str, ...]
    """An SNDlib archive (.tgz or folder), a .npz, .csv or .parquet file, or
    gravity:seed=0,count=200,load=4.  Repeat for one per topology, in their order; a single one
    applies to all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions(ProgramFileConfig):
    """Schemes, models, and the matrices that are allocated."""

    scheme: tuple[str, ...] = ()
    """A scheme with its options; repeat for more."""
    model: tuple[Path, ...] = ()
    """Folder of a trained model, or the name of a built-in one: flow (for teal) or universal (for
    price-gnn), the defaults.  Repeat for one per topology, in their order, with "none" for a
    topology without a model; a single one applies to all."""
    split: Literal["train", "validation", "test", "all"] = "test"
    """Matrices to use, in time order: train, the first 70%; validation, the next 10%; test, the
    last 20%; or all."""
    limit: int = 0
    """Maximum number of matrices; 0 for all."""

    def __post_init__(self) -> None:
        """Raise InputError for a value out of its range."""
        super().__post_init__()
        require(self, "limit", "an integer >= 0", self.limit >= 0)

    @property
    def models(self) -> tuple[Path | None, ...]:
        """Folders of the models in the settings, with None for "none"; (None,) without --model."""
        return tuple(None if str(model) == "none" else model for model in self.model) or (None,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(StudyOptions, NetworksConfig):
    """Settings of a study of several networks, and of its output."""

    out: Path
    """Folder for the results."""
    wide: bool = False
    """Print all columns; by default those that fit 80 characters.  The files always have all."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a value out of its range, or options that exclude each other."""
        super().__post_init__()
        num_topologies = len(self.topology)
        for field in ("topology", "traffic"):
            require(self, field, f"at least one {field}", bool(getattr(self, field)))
        for field in ("traffic", "model"):
            num_values = len(getattr(self, field))
            require(
                self,
                field,
                f"one value, or one for each of the {num_topologies} topologies",
                num_values in (0, 1, num_topologies),
            )
        if self.paths and num_topologies > 1:
            raise InputError.invalid("--paths", "", "works only with a single --topology")

    def instances(self) -> list[InstanceConfig]:
        """Return the settings of each topology with its traffic; a single traffic applies to all
        topologies.
        """
        shared_options = {
            f.name: getattr(self, f.name)
            for base in (ProgramConfig, TrafficFileConfig)
            for f in dataclasses.fields(base)
        }
        traffic = self.traffic if len(self.traffic) > 1 else self.traffic * len(self.topology)
        return [
            InstanceConfig(topology=topology_name, traffic=traffic_name, **shared_options)
            for topology_name, traffic_name in zip(self.topology, traffic, strict=True)
        ]

    def models_by_network(self) -> tuple[Path | None, ...]:
        """Return the model of each topology, None for none; a single model applies to all."""
        return self.models if len(self.models) > 1 else self.models * len(self.topology)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateOptions(StudyOptions):
    """Schemes to compare, on which matrices, and under which changes."""

    scheme: tuple[str, ...] = ()
    """A scheme with its options, such as teal:repair=admm,iterations=5 or lp-all:solver=highs;
    repeat for more.  all: every installed scheme that suits the objective.  Default: teal,
    price-gnn and lp-all."""
    limit: int = 0
    """Maximum number of matrices, evenly spread over the split; 0 for all."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more.  Models are not retrained.
    A demand that loses all candidate paths gets a new one if the network still connects it."""
    failures: str = ""
    """Also evaluate with random cable failures (both directions), drawn for each matrix: numbers or
    percentages of cables, such as 1,2,5%."""
    noise: str = ""
    """Also evaluate with Gaussian noise, whose variance is these multiples of the variance of each
    demand's changes over time: 2,5,10,20."""
    spatial: str = ""
    """Also evaluate with demand moved so that the largest tenth of the demands has these shares of
    the volume: 80,60,40,20%."""
    scale: str = ""
    """Also evaluate with all demands multiplied by factors: 0.5,2,4."""
    churn: str = ""
    """Also evaluate with a churn limit: at most these shares of the volume may move against the
    optimum of the previous matrix: 1,2,5,10%.  Schemes without such a limit are infeasible."""
    draws: int = 1
    """Number of random draws of failures and noise for each level and matrix."""
    online: bool = False
    """Also evaluate over time: while a scheme computes, its last allocation carries min(new demand,
    old flow); a scheme slower than the interval skips matrices.  Uses consecutive matrices, the
    first --limit of the split."""
    interval: str = ""
    """For --online: time between matrices, such as 5m.  Default: the interval of the traffic, or
    5m if unknown."""
    time_limit: str = "10m"
    """Exclude a scheme from the other matrices of a network once it has taken longer for one; its
    rows give the reason."""
    prove: bool = False
    """Prove every allocation in integers (as teal certify does), and write the proved gap to
    each row."""
    seed: int = 0
    """Seed of failures, noise, and the flash crowds of --race."""

    def __post_init__(self) -> None:
        """Raise InputError for a value out of its range."""
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
    """Compare schemes on the same matrices, nominal and under failures, noise and growth.

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
    """Measure time to certified gaps instead: of PDHG from a cold start and from the previous
    matrix, of each scheme, and of PDHG from each model.  Situations: the next interval, a flash
    crowd, failed links, and no earlier state.  --limit 0 means 3 matrices."""
    out: Path
    """Folder for report.html, results.csv and .parquet, manifest.json and plots; with --race,
    race.csv and race.png."""
    resume: Annotated[bool, RESUME] = False

    def __post_init__(self) -> None:
        """Raise InputError for a value out of its range, or options that exclude each other."""
        super().__post_init__()
        if self.fail and len(self.topology) > 1:
            raise InputError.invalid("--fail", "", "works only with a single --topology")
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
                if getattr(self, field):
                    option = f"--{field.replace('_', '-')}"
                    raise InputError.invalid(option, "", "cannot be combined with --race")
            require_one_program(self, "with --race")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditConfig(InstanceConfig):
    """Search for the demands under which a scheme loses most against the optimum.

    The demands stay near the input matrices.  Each reported loss is proven by two allocations: the
    scheme's and a better one.  Ctrl-C ends the search with the worst demands so far.
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
    """Folder of a trained model, for schemes that need one."""
    box: float = 0.5
    """Demands lie between (1 - BOX) times their smallest and (1 + BOX) times their largest rate in
    the matrices."""
    up_to: float = 0.0
    """Demands lie between 0 and this share of the mean link capacity, independent of the matrices;
    0 to use --box."""
    hose: bool = False
    """Also keep what each node sends and receives in total within the largest sums of the
    matrices."""
    measure: Literal["optimum", "capacity"] = "optimum"
    """Losses are relative to the optimum, or to the sum of all capacities."""
    time_budget: str = "1m"
    """Length of the search: 90s, 10m, 1h."""
    seed: int = 0
    """Seed of the search."""
    out: Path
    """Folder for worst.csv (a traffic matrix, as evaluate and solve read it), losses.csv,
    losses.png, manifest.json."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a value out of its range."""
        super().__post_init__()
        require_linear(self, "for an audit, which measures flow")
        require(self, "box", "a number >= 0", self.box >= 0)
        require(self, "scheme", "at least one scheme", bool(self.scheme))
        require(self, "up_to", "a number >= 0", self.up_to >= 0)
        require(self, "seed", "an integer >= 0", self.seed >= 0)
        seconds(self.time_budget, "--time-budget")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Run schemes on the frozen benchmark set, check results of any programs, and rank them.

    The set is made in its folder if it is not there yet: built-in networks, matrices and failures
    of fixed seeds, certified optima.  A content hash tells whether it equals that of others.  Four
    tracks: known (a matrix, maximum flow), failures (maximum flow with a failed cable), next (the
    matrix after the known ones, minimum utilisation), unsplittable (one path per demand, minimum
    utilisation).  A result file has rows case,source,target,path,share, where path has the names of
    the nodes joined by |.  The check computes loads and shares without Teal's solvers.  A missing
    or invalid case scores 0.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "problems": ("set", "network"),
        "results": ("scheme", "model", "results"),
        "output": ("out", "prove", "overwrite"),
    }

    set: Path
    """Folder of the set: set.json and each network's topology (.json) and matrices (.npz)."""
    network: tuple[str, ...] = ()
    """When the set is made, include only this network (b4, geant, germany50, gabriel-60,
    gabriel-90); repeat for more.  Default: all."""
    scheme: tuple[str, ...] = ()
    """Scheme or hedge with its options, as in evaluate, to run on the set; package.module:factory
    for your own scheme; repeat for more.  Its results and the seconds of each case are written to
    OUT."""
    model: Path | None = None
    """Folder of a trained model, for schemes that need one."""
    results: tuple[Path, ...] = ()
    """Result file of a program; its name without .csv is the name of the program.  Repeat for
    more."""
    out: Path | None = None
    """Folder for scores.csv, report.html and the results of --scheme."""
    prove: bool = False
    """Also write a proof of every valid result to OUT/proofs: its value, a bound for any program,
    and a checker in plain Python."""
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for options that exclude each other."""
        for field in ("scheme", "prove"):
            if self.out is None and getattr(self, field):
                raise InputError.invalid(f"--{field}", "", "needs an output folder", "add --out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Make one report of several evaluations: a self-contained page with tables, charts and maps,
    or separate files of charts and tables.
    """

    results: tuple[Path, ...]
    """Folder written by teal evaluate or teal next-interval; repeat for more of the same kind."""
    out: Path | None = None
    """Write the report to this .html file."""
    figures: Path | None = None
    """Write every chart to this folder, as .svg and .pdf, and the tables, including those of paired
    differences, as tables.md, tables.tex (booktabs) and tables.csv."""
    columns: str = ""
    """Columns of the tables in FIGURES, by their headings, separated by semicolons, such as
    "satisfied; of LP-all; of LP-all, 95%; time".  Default: all."""
    label: tuple[str, ...] = ()
    """SCHEME=TEXT: label of a scheme in the charts and tables of FIGURES; repeat for more."""
    overwrite: bool = False
    """Replace OUT, or the files of the same names in FIGURES, if they exist."""

    def __post_init__(self) -> None:
        """Raise InputError without --out and --figures, or for options that need --figures."""
        if self.out is None and self.figures is None:
            raise InputError.invalid("--out", "", "there is no output", "set --out or --figures")
        for field in ("columns", "label"):
            if self.figures is None and getattr(self, field):
                raise InputError.invalid(f"--{field}", "", "works only with --figures")


# Settings of train that a sweep cannot vary.
_UNVARIED_SETTINGS = ("out", "resume", "overwrite", "seed", "topology", "traffic", "workers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(TrainConfig):
    """Train with several settings and seeds, and compare the means, with 95% confidence intervals
    over the seeds.

    Every run trains as `teal train` does and is evaluated on test matrices; all settings of train
    apply to all runs.  An interrupted sweep continues with --resume.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sweep": ("vary", "seeds", "limit"),
        **TrainConfig.GROUPS,
    }

    vary: tuple[str, ...] = ()
    """A setting of train and its values: learning_rate=1e-3,3e-3; repeat for more settings, whose
    combinations are all run."""
    seeds: int = 3
    """Number of runs of each combination, with the seeds SEED, SEED + 1, ..."""
    limit: int = 20
    """Maximum number of test matrices to evaluate on, evenly spread; 0 for all."""
    resume: Annotated[bool, RESUME] = False

    def __post_init__(self) -> None:
        """Raise InputError for a value out of its range, or an unknown setting in --vary."""
        super().__post_init__()
        require(self, "seeds", "an integer >= 1", self.seeds >= 1)
        require(self, "limit", "an integer >= 0", self.limit >= 0)
        if self.workers:
            fault = "a sweep trains in one process"
            raise InputError.invalid("--workers", "", fault, "drop --workers")
        for _ in self.combinations():
            pass

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield each combination of the varied settings, as values by name, in the order of the
        runs.

        Raises:
            InputError: an unknown setting, or a value of another type.
        """
        # Values of each varied setting; ``from`` is a keyword of Python, so its field is ``from_``.
        varied_fields = {
            field.name: field
            for field in dataclasses.fields(TrainConfig)
            if field.name not in _UNVARIED_SETTINGS
        }
        values_by_setting: list[list[tuple[str, Any]]] = []
        for text in self.vary:
            name, _, values = text.partition("=")
            name = name.strip().replace("-", "_")
            name = "from_" if name == "from" else name
            if name not in varied_fields or not values:
                raise InputError(
                    "--vary",
                    "",
                    f"SETTING=A,B, with a setting of train{did_you_mean(name, varied_fields)}",
                    repr(text),
                )
            values_by_setting.append(
                [(name, self._value(name, value.strip(), text)) for value in values.split(",")]
            )
        # The last setting varies fastest.
        for combination in itertools.product(*values_by_setting):
            yield dict(combination)

    def _value(self, name: str, text: str, option_text: str) -> Any:
        """Parse a value of a varied setting, by the type of its default.

        Args:
            name: name of the setting.
            text: the value.
            option_text: the whole option, for messages.

        Raises:
            InputError: a value of another type.
        """
        default = getattr(self, name)
        try:
            if isinstance(default, bool):
                return {"true": True, "false": False}[text.lower()]
            if name == "num_paths":
                return text if text.startswith("auto") else int(text)
            if isinstance(default, int | float):
                return type(default)(text)
            return float(text) if name == "calibrate" else text
        except (ValueError, KeyError):
            raise InputError(
                "--vary", name, f"a value like {default!r}", f"{text!r} in {option_text!r}"
            ) from None
