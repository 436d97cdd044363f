"""Settings of `teal evaluate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from teal.config.base import (
    InstanceConfig,
    ProgramConfig,
    TrafficFileConfig,
    require,
    require_linear,
    require_one_program,
    seconds,
)
from teal.config.option import OVERWRITE, RESUME


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworksConfig(TrafficFileConfig):
    """Networks and their traffic."""

    topology: tuple[str, ...]
    """A node-link .json, .graphml or SNDlib .xml file, topohub:GROUP/NAME[,capacity=GBPS], or b4; repeat for more."""
    traffic: tuple[str, ...]
    """An SNDlib archive (.tgz or folder), a .npz, .csv or .parquet file, or gravity:seed=0,count=200,load=4: one for
    all topologies, or one for each, in their order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ProgramConfig, NetworksConfig):
    """Run schemes on the same matrices, unchanged and under failures, noise and growth, and compare them.

    Every scheme gets the same matrices, failures and noise and is measured by the same validator and clock; nothing
    is retrained.  The results are in OUT, with report.html to look at.  An interrupted run continues with --resume.
    """

    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "schemes": ("scheme", "model", "time_limit"),
        "matrices": ("split", "limit"),
        "changes of matrices and networks": (
            "fail", "failures", "noise", "spatial", "scale", "churn", "draws", "seed", "online", "interval",
        ),
        "other protocols": ("race", "next_interval", "known", "lead", "lookback"),
        "output": ("out", "prove", "wide", "json", "resume", "overwrite"),
        "for experts": ("epsilon", "device"),
    }  # fmt: skip

    scheme: tuple[str, ...] = ()
    """A scheme with its options, such as teal:repair=admm,iterations=5 or lp-all:solver=highs; repeat for more; all for
    every scheme that suits the objective.  Default: teal, price-gnn and lp-all."""
    model: tuple[Path, ...] = ()
    """Folder of a trained model, or the name of one that comes with Teal: flow (for teal), universal (for price-gnn),
    which are used without it.  One for all topologies, or one for each; none for a topology without a model."""
    split: Literal["train", "validation", "test", "all"] = "test"
    """Which matrices: the first 70%, the next 10%, the last 20% in time order, or all."""
    limit: int = 0
    """Number of matrices, at most, evenly spread over the split; 0 for all."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more.  Models are not changed; a demand without a
    candidate path that is left gets one, where the network still connects it."""
    failures: str = ""
    """Also evaluate with failed links, both directions, drawn for each matrix: numbers or shares, such as 1,2,5%."""
    noise: str = ""
    """Also evaluate with Gaussian noise; multiples of the variance of each demand's changes over time: 2,5,10,20."""
    spatial: str = ""
    """Also evaluate with moved demand; shares of the volume for the largest tenth of the demands: 80,60,40,20%."""
    scale: str = ""
    """Also evaluate with all demands multiplied by factors: 0.5,2,4."""
    churn: str = ""
    """Also evaluate where only a share of the volume may move against the optimum of the matrix before: 1,2,5,10%.
    Schemes that know no limit break it, and are infeasible there."""
    draws: int = 1
    """Number of random draws of failures and noise for each level and matrix."""
    online: bool = False
    """Also evaluate in time: while a scheme computes, its last allocation carries min(new demand, old flow), and a
    scheme slower than the interval skips some.  Takes consecutive matrices, the first --limit of the split."""
    interval: str = ""
    """For --online: time from one matrix to the next, such as 5m.  Default: that of the traffic, or 5m."""
    time_limit: str = "10m"
    """Stop running a scheme on a network once it has taken longer for one matrix; its rows say so."""
    prove: bool = False
    """Prove every allocation in whole numbers (as teal certify does), and write the proved gap to each row."""
    race: bool = False
    """Measure time to certified gaps instead, of PDHG from nothing and from the matrix before, of each scheme, and of
    PDHG from each model; for the next interval, a flash crowd, failed links, and no earlier state.  --limit 0: 3."""
    next_interval: bool = False
    """Measure allocations for matrices that nobody knows yet instead: a scheme is given the matrices before, and its
    splits carry the next one.  Use with --objective max_link_utilisation; --scheme mixture, last, saa36, peak12,
    static, residual36, or any other scheme, which then acts on the last matrix.  Takes consecutive
    matrices, the first --limit of the split."""
    known: str = ""
    """For --next-interval: what is known instead of the matrices before, such as estimates from counters (matrices.npz
    of teal estimate) of the same times; the splits still carry the matrices of --traffic."""
    lead: int = 1
    """For --next-interval: intervals from the newest known matrix to the one that is allocated for; 0, with --known,
    for the same interval."""
    lookback: int = 0
    """For --next-interval: matrices that schemes are given, the newest ones; 0 for all that are known."""
    seed: int = 0
    """Seed of failures, noise, and the flash crowds of --race."""
    out: Path
    """Folder for report.html, results.csv and .parquet, manifest.json and plots; with --race, race.csv and race.png."""
    wide: bool = False
    """Print all columns; without it five that fit 80 characters.  The files have all in any case."""
    json: bool = False
    """Print one JSON object instead of text."""
    resume: Annotated[bool, RESUME] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or settings that do not go together."""
        super().__post_init__()
        for field in ("limit", "seed"):
            require(self, field, "a whole number of at least 0", getattr(self, field) >= 0)
        require(self, "draws", "a whole number of at least 1", self.draws >= 1)
        count = len(self.topology)
        for field in ("topology", "traffic"):
            require(self, field, "at least one", bool(getattr(self, field)))
        for field in ("traffic", "model"):
            num_values = len(getattr(self, field))
            require(self, field, f"one, or one for each of the {count} topologies", num_values in (0, 1, count))
        for field in ("fail", "paths"):
            require(self, field, "a single topology", count == 1 or not getattr(self, field))
        seconds(self.time_limit, "--time-limit")
        if self.interval:
            require(self, "interval", "a duration above 0", seconds(self.interval, "--interval") > 0)
        require(self, "lead", "a whole number of at least 1 (0 with --known)", self.lead >= (0 if self.known else 1))
        require(self, "known", "--next-interval beside it", self.next_interval or not self.known)
        require(self, "known", "a single topology", not self.known or len(self.topology) == 1)
        require(self, "lookback", "a whole number of at least 0", self.lookback >= 0)
        incompatible = ("fail", "failures", "noise", "spatial", "scale", "churn", "online", "resume")
        for mode in ("race", "next_interval"):
            for field in incompatible if getattr(self, mode) else ():
                expected = f"no value: --{mode.replace('_', '-')} has its own situations"
                require(self, field, expected, not getattr(self, field))
        for mode in ("race", "next_interval"):
            if getattr(self, mode):
                require_one_program(self, f"with --{mode.replace('_', '-')}")
        if self.next_interval:
            require_linear(self, "with --next-interval: what arrives is measured as satisfied demand")
        require(self, "next_interval", "not together with --race", not (self.race and self.next_interval))

    def instances(self) -> list[InstanceConfig]:
        """The settings of each topology."""
        shared = {f.name: getattr(self, f.name) for base in (ProgramConfig, TrafficFileConfig)
                  for f in dataclasses.fields(base)}  # fmt: skip
        traffic = self.traffic if len(self.traffic) > 1 else self.traffic * len(self.topology)
        return [
            InstanceConfig(topology=where, traffic=what, **shared)
            for where, what in zip(self.topology, traffic, strict=True)
        ]

    def models(self) -> list[Path | None]:
        """The model of each topology, None for none; one for all if no more is given."""
        folders = [None if str(model) == "none" else model for model in self.model] or [None]
        return folders if len(folders) > 1 else folders * len(self.topology)
