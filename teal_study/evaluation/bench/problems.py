"""Problems of ``teal bench``: built-in networks, generated matrices with fixed seeds, and their
optima.

Four tracks:

- *known*: splits for a known matrix; maximum flow (total_flow).
- *failures*: splits for a known matrix with a failed cable; maximum flow.
- *next*: splits for the matrix after the known ones; minimum largest utilisation
  (max_link_utilisation).
- *unsplittable*: one path per demand; minimum largest utilisation.

The optimum of a case is over all paths of its network, certified by a bound to 0.1%.  In the track
*next* it is the optimum of a program that knows the matrix; in *unsplittable* it is the optimum of
splittable demands, which perhaps no program can reach.  Rates are rounded to six digits, so that
the set has one content hash on every machine: :data:`KEY`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from teal.errors import InputError
from teal.formats import load_topology, load_traffic, save_topology, save_traffic
from teal.network import Topology, TrafficMatrices, compute_paths
from teal.network.rates import ArrayRates
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.storage import atomic_file, content_key
from teal.solvers.columns import OverAllPaths, generate_columns

Track = Literal["known", "failures", "next", "unsplittable"]
TRACKS: tuple[Track, ...] = ("known", "failures", "next", "unsplittable")
SET_FILE = "set.json"
# Name of this version of the set.
NAME = "teal-bench-2"
# Content hash of the networks and matrices of the frozen set.
KEY = "96af18234c86707808ca8fd0cb2ae133ea4f4f58b0671a461b4b64dfd2fc1885"
# Format of the folder.
_FORMAT = 1
# Certified gap of every optimum.
_GAP = 1e-3
# Significant digits of a rate.
_DIGITS = 6
# Number of edge-disjoint paths from which column generation starts.
_NUM_FIRST_PATHS = 4


@dataclasses.dataclass(frozen=True)
class _NetworkSpec:
    """Specification of one network of the set.

    Attributes:
        topology: name of the network.
        traffic: specification of the generated matrices.
        known_rows: indices of the matrices of the track known; the last one is used for failures.
        next_rows: indices of the matrices of the track next.
        failed_every: every n-th cable fails, in a case of its own; 0 for none.
        unsplittable_rows: indices of the matrices of the track unsplittable.
    """

    topology: str
    traffic: str
    known_rows: tuple[int, ...]
    next_rows: tuple[int, ...]
    failed_every: int
    unsplittable_rows: tuple[int, ...]


# The flow tracks use networks with scarce capacity: on GEANT, Germany50 and B4 at a load of 4 every
# good scheme is optimal.
_NETWORK_SPECS = {
    "b4": _NetworkSpec(
        "b4", "gravity:seed=11,count=48,load=4", (24,), tuple(range(40, 48)), 3, (12, 36)
    ),
    "geant": _NetworkSpec(
        "topohub:sndlib/geant",
        "gravity:seed=12,count=48,load=4",
        (),
        tuple(range(40, 48)),
        0,
        (12, 36),
    ),
    "germany50": _NetworkSpec(
        "topohub:sndlib/germany50",
        "gravity:seed=13,count=48,load=4",
        (),
        tuple(range(40, 48)),
        0,
        (12,),
    ),
    "gabriel-60": _NetworkSpec(
        "topohub:gabriel/60/8", "gravity:seed=15,count=48,load=8", (12, 24, 36, 47), (), 14, ()
    ),
    "gabriel-90": _NetworkSpec(
        "topohub:gabriel/90/7", "gravity:seed=16,count=24,load=8", (12, 23), (), 0, ()
    ),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem of the benchmark.

    Attributes:
        name: network, track, matrix and failed cable, such as
            ``geant/failures/24/ch1.ch - it1.it``.
        track: known, failures, next or unsplittable.
        network: name of the network in the set.
        matrix: index of the matrix on which results are evaluated.
        failed: names of the two ends of the failed cable; () for none.
        value: value of the optimum over all paths to 0.1%: Gbit/s, or the largest utilisation.
        bound: certified bound on the value of any program.
    """

    name: str
    track: Track
    network: str
    matrix: int
    failed: tuple[str, ...]
    value: float
    bound: float

    @property
    def objective(self) -> str:
        """Name of the objective: total_flow, or max_link_utilisation."""
        return "total_flow" if self.track in ("known", "failures") else "max_link_utilisation"


@dataclasses.dataclass(frozen=True, eq=False)
class BenchSet:
    """Networks, matrices and cases of the benchmark.

    Attributes:
        networks: networks by name.
        traffic: matrices by name of the network.
        cases: cases in order.
    """

    networks: dict[str, Topology]
    traffic: dict[str, TrafficMatrices]
    cases: tuple[Case, ...]

    @property
    def key(self) -> str:
        """Content hash of networks and matrices, without the optima, whose last digits depend on
        the machine.
        """
        parts: list[Any] = []
        for name, topology in self.networks.items():
            rates = self.traffic[name].read(slice(None))
            parts += [name, topology.content_key(), np.char.mod(f"%.{_DIGITS}g", rates)]
        return content_key(_FORMAT, *parts)

    def network_of(self, case: Case) -> Topology:
        """Return the network of a case, with the failed cable at a capacity of 0."""
        topology = self.networks[case.network]
        if not case.failed:
            return topology
        a, b = case.failed
        return topology.with_failed_links(topology.find_links(a, b))


def make_set(
    report: Callable[[str, int, int], None] = lambda *_: None,
    names: tuple[str, ...] = tuple(_NETWORK_SPECS),
) -> BenchSet:
    """Return the set: load networks, generate matrices, and compute the optima.

    Args:
        report: called before each case with its name, its index and the number of cases.
        names: networks to include.

    Raises:
        InputError: a network that the set does not have.
    """
    for name in names:
        if name not in _NETWORK_SPECS:
            raise InputError("--network", "", "one of " + ", ".join(_NETWORK_SPECS), repr(name))
    # Networks, and their rounded traffic.
    networks = {}
    traffic = {}
    for name in names:
        networks[name] = topology = dataclasses.replace(
            load_topology(_NETWORK_SPECS[name].topology), name=name
        )
        traffic[name] = _rounded(load_traffic(_NETWORK_SPECS[name].traffic, topology))
    # Solve each case; its value and bound are 0 until then.
    case_plans = [
        (name, track, matrix_index, failed)
        for name in names
        for track, matrix_index, failed in _case_plans(name, networks[name])
    ]
    # A case is named network/track/matrix, and /failed cable if there is one.
    cases = []
    bench = BenchSet(networks, traffic, ())
    for case_index, (name, track, matrix_index, failed) in enumerate(case_plans):
        case = Case(
            "/".join(filter(None, (name, track, str(matrix_index), " - ".join(failed)))),
            track,
            name,
            matrix_index,
            failed,
            0,
            0,
        )
        report(case.name, case_index, len(case_plans))
        cases.append(_with_optimum(bench, case))
    return dataclasses.replace(bench, cases=tuple(cases))


def _case_plans(name: str, topology: Topology) -> Iterator[tuple[Track, int, tuple[str, ...]]]:
    """Yield track, index of the matrix, and ends of the failed cable, () for none, of each case of
    a network.

    Args:
        name: name of the network in the set.
        topology: the network.
    """
    network_spec = _NETWORK_SPECS[name]
    for row in network_spec.known_rows:
        yield "known", row, ()
    cables = topology.cables()[:: network_spec.failed_every] if network_spec.failed_every else []
    for cable in cables:
        ends = (topology.link_source[cable[0]], topology.link_target[cable[0]])
        yield (
            "failures",
            network_spec.known_rows[-1],
            tuple(topology.node_names[end] for end in ends),
        )
    for row in network_spec.next_rows:
        yield "next", row, ()
    for row in network_spec.unsplittable_rows:
        yield "unsplittable", row, ()


def _with_optimum(bench: BenchSet, case: Case) -> Case:
    """Return a case with the value and the bound of its optimum over all paths.

    Args:
        bench: networks and matrices.
        case: the case, without value and bound.
    """
    _, optimum = optimum_of(bench, case)
    return dataclasses.replace(
        case, value=float(optimum.result.value[0]), bound=float(optimum.bound_all_paths[0])
    )


def optimum_of(bench: BenchSet, case: Case) -> tuple[Problem, OverAllPaths]:
    """Return the problem of a case over _NUM_FIRST_PATHS paths of each demand, and its optimum
    over all paths, by column generation from these paths.

    Args:
        bench: networks and matrices.
        case: the case.
    """
    topology = bench.network_of(case)
    traffic = bench.traffic[case.network]
    paths = compute_paths(bench.networks[case.network], traffic.pairs, num_paths=_NUM_FIRST_PATHS)
    problem = Problem.create(
        bench.networks[case.network],
        paths,
        Objective(case.objective),
        traffic.read([case.matrix]),
        capacity=topology.capacity,
    )
    return problem, generate_columns(problem, target=_GAP)


def _rounded(traffic: TrafficMatrices) -> TrafficMatrices:
    """Return matrices with rates rounded to _DIGITS significant digits."""
    rates = np.char.mod(f"%.{_DIGITS}g", traffic.read(slice(None))).astype(np.float64)
    key = content_key(rates, traffic.pairs, traffic.timestamps)
    return dataclasses.replace(traffic, rates=ArrayRates(rates), scale=1.0, key=key)


def write_set(folder: Path, bench: BenchSet) -> None:
    """Write a set to a folder: ``set.json`` and, for each network, ``NAME.json`` (topology) and
    ``NAME.npz`` (matrices).

    Args:
        folder: folder of the set, made if missing.
        bench: the set.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, topology in bench.networks.items():
        save_topology(folder / f"{name}.json", topology)
        save_traffic(folder / f"{name}.npz", bench.traffic[name], topology)
    content = {
        "name": NAME,
        "format": _FORMAT,
        "key": bench.key,
        "networks": list(bench.networks),
        "cases": [dataclasses.asdict(case) for case in bench.cases],
    }
    with atomic_file(folder / SET_FILE) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_set(folder: Path) -> BenchSet:
    """Return the set that a folder holds.

    Raises:
        InputError: the folder has no set, or its files were changed.
    """
    # Cases, names of the networks, and content hash of the set when it was written.
    file = folder / SET_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        cases = tuple(
            Case(**{**case, "failed": tuple(case["failed"])}) for case in content["cases"]
        )
        names = content["networks"]
        key = content["key"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        fault = f"no benchmark set: {type(error).__name__}: {error}"
        raise InputError.invalid(str(file), "", fault, "make one with teal bench --set") from None
    # Networks, named as in the set, and their matrices; their content hash must be unchanged.
    networks = {name: load_topology(str(folder / f"{name}.json")) for name in names}
    networks = {
        name: dataclasses.replace(topology, name=name) for name, topology in networks.items()
    }
    traffic = {name: load_traffic(str(folder / f"{name}.npz"), networks[name]) for name in names}
    bench = BenchSet(networks, traffic, cases)
    if bench.key != key:
        raise InputError(str(file), "key", f"files with the content key {key}", bench.key)
    return bench
