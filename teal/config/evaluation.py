"""Of evaluate."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from teal.config.base import InstanceConfig, ProgramConfig, require, seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworksConfig:
    """Networks and their traffic."""

    topology: tuple[str, ...]
    """A node-link .json, .graphml or SNDlib .xml file, topohub:GROUP/NAME[,capacity=GBPS], or b4; repeat for more."""
    traffic: tuple[str, ...]
    """An SNDlib archive (.tgz or folder), a .npz, .csv or .parquet file, or gravity:seed=0,count=200,load=4: one for
    all topologies, or one for each, in their order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ProgramConfig, NetworksConfig):
    """Run schemes on the same matrices, as they came and under failures, noise and growth; set them side by side.

    Every scheme meets the same matrices, failures and noise, is measured by the same validator and the same clock, and
    nothing is retrained.  report.html in OUT shows it all; a run that broke off goes on with --resume.
    """

    scheme: tuple[str, ...] = ()
    """A scheme with its options, teal:repair=admm,iterations=5 or lp-all:solver=highs; repeat for
    more.  Without it: price-gnn, lp-all and, with the --model of one network, teal."""
    model: tuple[Path, ...] = ()
    """Folder of a trained model, or one that comes with Teal: b4 (for teal), universal (for price-gnn, its default);
    one for all topologies, or one for each, none where there is none."""
    split: Literal["train", "validation", "test", "all"] = "test"
    """Which matrices: the first 70%, the next 10%, the last 20% in time order, or all."""
    limit: int = 0
    """Look at no more than so many matrices, evenly spread over the split; 0 for all."""
    fail: tuple[str, ...] = ()
    """A failed link A,B (node names; both directions); repeat for more.  Paths and models stay as they are."""
    failures: str = ""
    """Also with so many links failed, both directions, drawn for each matrix: 1,2,5% (of all links)."""
    noise: str = ""
    """Also with Gaussian noise of so many times the variance of each demand's changes over time: 2,5,10,20."""
    spatial: str = ""
    """Also with the share of the volume that the largest tenth of the demands have moved to: 80,60,40,20%."""
    scale: str = ""
    """Also with all demands times: 0.5,2,4."""
    draws: int = 1
    """Failures and noise drawn so many times a level and matrix."""
    online: bool = False
    """Also in time: while a scheme computes, its last allocation carries min(new demand, old flow), and a scheme
    slower than the interval misses some.  Takes consecutive matrices, the first --limit of the split."""
    interval: str = ""
    """Of --online: time from one matrix to the next, such as 5m.  Without it the traffic's own, or 5m."""
    time_limit: str = "10m"
    """Leave a scheme out of a network once it took longer for one matrix; its rows say so."""
    race: bool = False
    """Measure time to certified gaps instead: PDHG from nothing and from the matrix before, each scheme, and PDHG
    from each model; for the next interval, a flash crowd, failed links, and no earlier state.  --limit 0 means 3."""
    seed: int = 0
    """Of failures, noise, and the crowds of --race."""
    out: Path
    """Folder for report.html, results.csv and .parquet, manifest.json and the plots; of --race, race.csv, race.png."""
    resume: bool = False
    """Go on with the run in OUT that broke off, with the same settings."""
    overwrite: bool = False
    """Replace the results in OUT."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range, or settings that do not go together."""
        for field in ("limit", "seed"):
            require(self, field, "a whole number of at least 0", getattr(self, field) >= 0)
        require(self, "draws", "a whole number of at least 1", self.draws >= 1)
        count = len(self.topology)
        for field in ("topology", "traffic"):
            require(self, field, "at least one", bool(getattr(self, field)))
        for field in ("traffic", "model"):
            given = len(getattr(self, field))
            require(self, field, f"one, or one for each of the {count} topologies", given in (0, 1, count))
        for field in ("fail", "paths"):
            require(self, field, "a single topology", count == 1 or not getattr(self, field))
        seconds(self.time_limit, "--time-limit")
        if self.interval:
            require(self, "interval", "a duration above 0", seconds(self.interval, "--interval") > 0)
        if self.race:
            others = ("fail", "failures", "noise", "spatial", "scale", "online", "resume")
            for field in others:
                require(self, field, "nothing: --race has situations of its own", not getattr(self, field))

    def instances(self) -> list[InstanceConfig]:
        """One for each topology."""
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(ProgramConfig)}
        traffic = self.traffic if len(self.traffic) > 1 else self.traffic * len(self.topology)
        return [
            InstanceConfig(topology=where, traffic=what, **shared)
            for where, what in zip(self.topology, traffic, strict=True)
        ]

    def models(self) -> list[Path | None]:
        """One for each topology."""
        given = [None if str(model) == "none" else model for model in self.model] or [None]
        return given if len(given) > 1 else given * len(self.topology)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Make one report of several evaluations: a page that needs no network, with tables, plots and maps."""

    results: tuple[Path, ...]
    """Folder that teal evaluate wrote; repeat for more."""
    out: Path
    """Write the report to this .html file."""
    overwrite: bool = False
    """Replace OUT if it exists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(InstanceConfig):
    """What if a link fails?  Every single failure (both directions) x every matrix, each to a certified gap.

    All of them go through the first-order engine, sixteen at a time, from where the matrix ended without the failure;
    no LP solver.  Says which links cost most, and at which times.
    """

    split: Literal["train", "validation", "test", "all"] = "all"
    """Which matrices: the first 70%, the next 10%, the last 20% in time order, or all."""
    limit: int = 0
    """Look at no more than so many matrices, the first of them in time order; 0 for all."""
    gap: float = 0.01
    """Certified gap of every answer."""
    worst: int = 20
    """Cases to list."""
    out: Path
    """Folder for failures.csv and .parquet, manifest.json and failures.png."""
    resume: bool = False
    """Go on with the run in OUT that broke off, with the same settings."""
    overwrite: bool = False
    """Replace the results in OUT."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        require(self, "limit", "a whole number of at least 0", self.limit >= 0)
        require(self, "worst", "a whole number of at least 1", self.worst >= 1)
        require(self, "gap", "a number in (0, 1)", 0 < self.gap < 1)
