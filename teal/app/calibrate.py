"""Calibration of the cost model on public networks (``teal warm-up --calibrate``)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from teal.app.table import Column, Table
from teal.app.text import digits, percent
from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.runtime.progress import progress_bar
from teal.solvers import calibration, cost_model
from teal.solvers.calibration import Case

# Networks of 12 to 90 nodes, small and large ones in turn.
_NETWORKS = (
    "topohub:sndlib/abilene",
    "topohub:sndlib/germany50",
    "topohub:topozoo/Uninett2011",
    "topohub:sndlib/polska",
    "topohub:sndlib/cost266",
    "topohub:gabriel/90/7",
    "b4",
    "topohub:sndlib/geant",
    "topohub:gabriel/60/8",
    "topohub:sndlib/nobel-eu",
)
_OBJECTIVES = (
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.MAX_LINK_UTILISATION,
    ObjectiveName.PROPORTIONAL_FAIR,
)
# Gravity traffic: all of it can be carried, or not, in turn.
_LOADS = (1.5, 6.0)
# Utilities are measured on networks up to this scan size, in trie nodes and path slots.
_MAX_UTILITY_SCAN = 10_000
_SOLVE_LIMIT_S = 5.0
# No further network is begun after this time, s.
_LIMIT_S = 300.0
# A choice is near the fastest engine within this ratio of times.
_NEAR = 1.15


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Result of a calibration.

    Attributes:
        cases: measured cases.
        before: time of the chosen engine over that of the fastest, for each case, without factors.
        after: the same with factors that were fitted on other networks.
        factors: stored factors by key; none if they would not improve the choice.
        path: file of the factors; None if none is written.
    """

    cases: Sequence[Case]
    before: Sequence[float]
    after: Sequence[float]
    factors: cost_model.Factors
    path: Path | None

    def describe(self) -> str:
        """Return lines of text: how near the choices are to the fastest engine, and the file."""
        num_networks = len({case.network for case in self.cases})
        lines = [
            f"{len(self.cases)} programs on {num_networks} networks: the chosen engine is within "
            f"{_NEAR:g} times of the fastest in {percent(_share_near(self.before))} of them as the "
            f"model comes, in {percent(_share_near(self.after))} with factors fitted on other "
            "networks"
        ]
        if self.path is None:
            lines.append("the model fits this machine already: no factors are stored")
        else:
            lines.append(f"factors for this machine: {self.path}")
        return "\n".join(lines)

    def table(self) -> Table:
        """Return the table of the factors."""
        columns = [
            Column("engine, program, start", lambda row: row[0], is_name=True),
            Column("measured / predicted", lambda row: row[1], digits(3)),
        ]
        return Table("Factors on predicted seconds", columns, list(self.factors.items()))

    def to_json(self) -> dict[str, Any]:
        """Return a dict for ``--json``."""
        return {
            "programs": len(self.cases),
            "near_fastest_before": _share_near(self.before),
            "near_fastest_after": _share_near(self.after),
            "factors": self.factors,
            "file": None if self.path is None else str(self.path),
        }


def calibrate() -> Calibration:
    """Measure the engines on public networks; store the factors if they improve the choice on
    networks that they were not fitted on.
    """
    cases = []
    for measured in _measured_cases():
        cases += measured
    before = calibration.regrets(cases, {})
    after = calibration.held_out_regrets(cases)
    if np.mean(np.log(after)) >= np.mean(np.log(before)):
        return Calibration(cases, before, after, {}, None)
    factors = calibration.factors_of(cases)
    return Calibration(cases, before, after, factors, cost_model.store_factors(factors))


def _measured_cases() -> Iterator[list[Case]]:
    """Yield the cases of each network and objective, until the time is over."""
    begin = time.monotonic()
    with progress_bar(
        total=len(_NETWORKS) * len(_OBJECTIVES), desc="measuring", unit="program"
    ) as bar:
        for index, network in enumerate(_NETWORKS):
            if time.monotonic() - begin > _LIMIT_S:
                break
            load = _LOADS[index % len(_LOADS)]
            for problem in _problems(network, load):
                yield list(calibration.measure(network, problem, _SOLVE_LIMIT_S))
                bar.update(1)


def _problems(network: str, load: float) -> Iterator[Problem]:
    """Yield the problems of a network, one for each objective.

    Args:
        network: source of the topology.
        load: load of the gravity traffic.
    """
    topology = load_topology(network)
    traffic = load_traffic(f"gravity:seed=0,count={calibration.BATCH + 1},load={load}", topology)
    paths = compute_paths(topology, traffic.pairs)
    demand = traffic.read(list(range(calibration.BATCH + 1)))
    for objective in _OBJECTIVES:
        is_utility = objective is ObjectiveName.PROPORTIONAL_FAIR
        if not is_utility or paths.scan_size <= _MAX_UTILITY_SCAN:
            yield Problem.create(topology, paths, Objective(objective), demand)


def _share_near(ratios: Sequence[float]) -> float:
    """Return the share of ratios that are at most ``_NEAR``."""
    return float(np.mean(np.asarray(ratios) <= _NEAR))
