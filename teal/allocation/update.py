r"""Hitless updates: from one allocation to another in steps, with no link above its capacity at any
time.

Within a step routers change at times of their own, so that each path may carry its old or its new
flow, in any combination.  With f_a[p] the flow of path p after step a, no combination overloads a
link if

    load[e](max(f_{a-1}, f_a)) <= c[e]      for every link e and step a,

as in SWAN (Hong et al., SIGCOMM 2013, section 4.3).  For s steps the flows between the first and
the last allocation are found by a linear program, which keeps as much of every demand as it can
while the update lasts:

    max rho <= 1
    s.t.  sum of f_a over the paths of d >= rho min(carried before, carried after)
          for every d and a < s,
    m_a >= f_{a-1}, m_a >= f_a, load(m_a) <= c.

Where both allocations fill a link there may be no way with rho = 1: something must be shed for a
moment, the less the more steps there are.  The fewest steps with rho = 1 are found by trying s = 1,
2, ...; if there are none, the s with the best rho.  The result of the program is repaired and
measured in float64: its steps fit whatever the solver's tolerance, and rho is what they keep.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from teal.allocation.settings import UpdateConfig
from teal.app.command import Notify, Outcome
from teal.errors import SolverError
from teal.formats import topology_of
from teal.formats.allocations import read_allocation, stored_paths
from teal.network import Topology
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.lp import solve_lp
from teal.runtime.storage import atomic_file, check_out_folder, remove_files

MAX_STEPS = 6
# Values of rho from which nothing counts as shed.
_WHOLE_SHARE = 1 - 1e-6
# Share of a capacity by which a given allocation may exceed it.
_CAPACITY_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class NamedPaths:
    """P paths of D demands over E links.

    Attributes:
        through: (E, P) 1 where a path uses a link.
        demand: (P,) number of each path's demand.
        capacity: (E,) Gbit/s.
    """

    through: sp.csr_array
    demand: Int64Array
    capacity: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """The steps of an update.

    Attributes:
        flows: (s + 1, P) Gbit/s: before, after each step, and at the end.
        kept: rho, the share of what both allocations carry that every demand keeps all the time,
            measured.
    """

    flows: FloatArray
    kept: float

    @property
    def steps(self) -> int:
        """S."""
        return len(self.flows) - 1


def worst_utilisation(paths: NamedPaths, before: FloatArray, after: FloatArray) -> float:
    """Largest load over capacity of a link in any combination of old and new flows; infinite over a
    failed link.
    """
    load = paths.through @ np.maximum(before, after)
    live = paths.capacity > 0
    if (load[~live] > 0).any():
        return float("inf")
    return float((load[live] / paths.capacity[live]).max(initial=0.0))


def plan_update(
    paths: NamedPaths, before: FloatArray, after: FloatArray, max_steps: int = MAX_STEPS
) -> Update:
    """The fewest steps of a hitless update, or those that keep most.

    Args:
        paths: paths of both allocations.
        before: (P,) flows in force, Gbit/s, within the capacities.
        after: (P,) flows at the end, likewise.
        max_steps: most steps that are tried.

    Raises:
        SolverError: one of the two allocations overloads a link.
    """
    for name, flows in (("before", before), ("after", after)):
        if worst_utilisation(paths, flows, flows) > 1 + _CAPACITY_TOLERANCE:
            raise SolverError(f"update: the allocation {name} the update overloads a link")
    if worst_utilisation(paths, before, after) <= 1 + _CAPACITY_TOLERANCE:
        return Update(np.stack([before, after]), 1.0)
    best: Update | None = None
    for steps in range(2, max_steps + 1):
        update = _in_steps(paths, before, after, steps)
        if best is None or update.kept > best.kept * (1 + 1e-6):
            best = update
        if update.kept >= _WHOLE_SHARE:
            break
    if best is None:
        raise SolverError(f"update: not possible in {max_steps} step")
    return best


def _in_steps(paths: NamedPaths, before: FloatArray, after: FloatArray, steps: int) -> Update:
    """Solve the program of the module for s steps, repair the flows, and measure them."""
    middle = _solve_program(paths, before, after, steps)
    if middle is None:
        middle = np.stack([np.minimum(before, after)] * (steps - 1))
    flows = np.vstack([before, _within_capacities(paths, before, middle, after), after])
    return Update(flows, _carried_share(paths, flows))


def _by_demand(paths: NamedPaths) -> sp.csr_array:
    """(D, P) 1 where a path belongs to a demand."""
    count = len(paths.demand)
    demands = int(paths.demand.max(initial=-1)) + 1
    return sp.csr_array((np.ones(count), (paths.demand, np.arange(count))), shape=(demands, count))


def _carried_share(paths: NamedPaths, flows: FloatArray) -> float:
    """Rho of flows (s + 1, P), in float64."""
    carried = (_by_demand(paths) @ flows.T).T
    min_carried = np.minimum(carried[0], carried[-1])
    counts = min_carried > 0
    return float(np.minimum(1.0, carried[1:-1, counts] / min_carried[counts]).min(initial=1.0))


def _within_capacities(
    paths: NamedPaths, before: FloatArray, middle: FloatArray, after: FloatArray
) -> FloatArray:
    """``middle`` (s - 1, P) lowered until no combination of two steps overloads a link, whatever a
    solver's tolerance.

    A path gets the share that the most overloaded of its links allows; lowering a flow relieves all
    links.
    """
    middle = middle.copy()
    for step, flows in ((0, before), (-1, after)):
        unchanged = np.minimum(middle[step], flows)
        increase = np.maximum(middle[step] - flows, 0)
        residual = np.maximum(paths.capacity - paths.through @ flows, 0)
        middle[step] = unchanged + increase * _share(paths, residual, increase)
    for step in range(len(middle) - 1):
        share = _share(paths, paths.capacity, np.maximum(middle[step], middle[step + 1]))
        middle[step : step + 2] *= share
    return middle


def _share(paths: NamedPaths, residual: FloatArray, flows: FloatArray) -> FloatArray:
    """Return (P,) the share of the flow of each path at which all loads are at most ``residual``
    (E,).
    """
    load = paths.through @ flows
    of_link = np.where(load > residual, residual / np.where(load > 0, load, 1), 1.0)
    share = np.ones(len(flows))
    link, path = paths.through.nonzero()
    np.minimum.at(share, path, of_link[link])
    return share


def _solve_program(
    paths: NamedPaths, before: FloatArray, after: FloatArray, steps: int
) -> FloatArray | None:
    """Solve the linear program for (s - 1, P) intermediate flows; None if it was not solved.

    Variables are f_1 .. f_{s-1}, m_1 .. m_s, rho.  Solvers have absolute tolerances: flows are
    shares of the larger of what the demand carries before and after, loads shares of the capacity.
    """
    num_paths = len(before)
    num_inner = steps - 1
    paths_of_demand = _by_demand(paths)
    carried = np.stack([paths_of_demand @ before, paths_of_demand @ after])
    volume = carried.max(0)
    # Gbit/s of each path's variables.
    unit = volume[paths.demand]
    per_unit = np.where(unit > 0, 1 / np.where(unit > 0, unit, 1), 0)
    through = _scaled_loads(paths, unit)
    variables = _Variables(num_paths, num_inner, steps)
    a_ub = []
    b_ub = []
    # Load of the larger flows of each step, which are at least the flows before and after it.
    eye = sp.eye_array(num_paths, format="csr")
    for step in range(steps):
        a_ub.append(variables.larger_flow(through, step))
        # The flows before may exceed a capacity by rounding.
        b_ub.append(np.maximum(1, through @ (before * per_unit)))
        for flow, end_flow in ((step - 1, before), (step, after)):
            if 0 <= flow < num_inner:
                a_ub.append(variables.flow(eye, flow) - variables.larger_flow(eye, step))
                b_ub.append(np.zeros(num_paths))
            else:
                a_ub.append(-variables.larger_flow(eye, step))
                b_ub.append(-end_flow * per_unit)
    # Every demand keeps the share rho of what both allocations carry.
    num_demands = len(volume)
    min_share = np.where(volume > 0, carried.min(0) / np.where(volume > 0, volume, 1), 0)
    rho_column = (np.arange(num_demands), np.full(num_demands, variables.num_variables - 1))
    rho_rows = sp.csr_array((min_share, rho_column), shape=(num_demands, variables.num_variables))
    for step in range(num_inner):
        a_ub.append(sp.csr_array(-variables.flow(paths_of_demand, step) + rho_rows))
        b_ub.append(np.zeros(num_demands))
    # Maximise rho; paths over failed links carry nothing.
    cost = np.zeros(variables.num_variables)
    cost[-1] = -1.0
    is_usable = (unit > 0) & ~_is_broken(paths)
    upper = np.append(np.tile(np.where(is_usable, np.inf, 0), num_inner + steps), 1.0)
    result = solve_lp(cost, (sp.vstack(a_ub, format="csr"), np.concatenate(b_ub)), high=upper)
    if result.x is None or not result.is_solved:
        return None
    flows = result.x[: num_paths * num_inner].reshape(num_inner, num_paths)
    return np.maximum(flows, 0) * unit


def _scaled_loads(paths: NamedPaths, unit: FloatArray) -> sp.csr_array:
    """Return the matrix of loads as shares of the capacities of the live links.

    Args:
        paths: P paths.
        unit: (P,) Gbit/s of each path's variables.
    """
    is_live = paths.capacity > 0
    inverse = np.where(is_live, 1 / np.where(is_live, paths.capacity, 1), 0)
    return sp.csr_array(paths.through.multiply(inverse[:, None]).multiply(unit[None]))[is_live]


def _is_broken(paths: NamedPaths) -> BoolArray:
    """Return (P,) whether a path uses a failed link."""
    has_failed = ~(paths.capacity > 0)
    if not has_failed.any():
        return np.zeros(len(paths.demand), dtype=bool)
    is_broken: BoolArray = paths.through[has_failed].sum(0) > 0
    return is_broken


@dataclasses.dataclass(frozen=True)
class _Variables:
    """Variables of the program, in the order f_1 .. f_{s-1}, m_1 .. m_s, rho.

    Attributes:
        num_paths: P, the number of variables of an f or m.
        num_inner: s - 1.
        steps: s.
    """

    num_paths: int
    num_inner: int
    steps: int

    @property
    def num_variables(self) -> int:
        """Number of all variables."""
        return self.num_paths * (self.num_inner + self.steps) + 1

    def flow(self, rows: sp.csr_array, index: int) -> sp.csr_array:
        """Return the matrix with ``rows`` (n, P) on the variables of f_{index + 1}."""
        num_blocks = self.num_inner + self.steps
        selector = sp.csr_array(([1.0], ([0], [index])), shape=(1, num_blocks))
        return sp.csr_array(sp.hstack([sp.kron(selector, rows), sp.csr_array((rows.shape[0], 1))]))

    def larger_flow(self, rows: sp.csr_array, index: int) -> sp.csr_array:
        """Return the matrix with ``rows`` (n, P) on the variables of m_{index + 1}."""
        return self.flow(rows, self.num_inner + index)


_PATTERN = "step-*.json"
# Share of a path's largest flow; smaller flows are not written to the file of a step.
_MIN_SHARE = 1e-9

# Router, target, class ("" for none).
_Demand = tuple[str, str, str]
# Demand, links of a path.
_Key = tuple[_Demand, tuple[int, ...]]


def run_update(config: UpdateConfig) -> Update:
    """Read, plan, write.

    Raises:
        InputError: invalid settings or an invalid file.
        SolverError: an allocation that overloads a link, or no way in so many steps.
    """
    earlier = tuple(file.name for file in config.out.glob(_PATTERN))
    check_out_folder(config.out, earlier or ("step-1.json",), overwrite=config.overwrite)
    topology = topology_of(config)
    before, after = (_flows(file, topology) for file in (config.before, config.after))
    keys = list(dict.fromkeys([*before, *after]))
    names = list(dict.fromkeys(demand for demand, _ in keys))
    number = {name: d for d, name in enumerate(names)}
    rows = np.array([link for _, links in keys for link in links], dtype=np.int64)
    columns = np.repeat(np.arange(len(keys)), [len(links) for _, links in keys])
    through = sp.csr_array(
        (np.ones(len(rows)), (rows, columns)), shape=(topology.num_links, len(keys))
    )
    paths = NamedPaths(
        through, np.array([number[demand] for demand, _ in keys], dtype=np.int64), topology.capacity
    )
    start, end = (np.array([flows.get(key, 0.0) for key in keys]) for flows in (before, after))
    update = plan_update(paths, start, end, config.max_steps)
    remove_files(config.out, earlier)
    for step in range(1, update.steps + 1):
        written = _as_json(topology, keys, update.flows[step], update, step)
        with atomic_file(config.out / f"step-{step}.json") as temporary:
            temporary.write_text(json.dumps(written) + "\n", encoding="utf-8")
    return update


def _flows(file: Path, topology: Topology) -> dict[_Key, float]:
    """Gbit/s of each path of an allocation."""
    names = topology.node_names
    return {
        ((names[source], names[target], name), links): rate
        for (source, target, name), paths in stored_paths(
            read_allocation(file), topology, str(file)
        ).items()
        for links, rate in paths.items()
    }


def _as_json(
    topology: Topology, keys: list[_Key], flows: FloatArray, update: Update, step: int
) -> dict[str, Any]:
    """One step as `teal solve --out X.json` writes allocations; splits are shares of what is
    carried in this step.
    """
    names = topology.link_names()
    nodes = topology.node_names
    largest = update.flows.max(0)
    carried: dict[_Demand, list[dict[str, Any]]] = {}
    for (demand, links), rate, max_rate in zip(keys, flows.tolist(), largest.tolist(), strict=True):
        paths_of = carried.setdefault(demand, [])
        if rate > _MIN_SHARE * max_rate:
            along = [
                nodes[topology.link_source[links[0]]],
                *(nodes[topology.link_target[link]] for link in links),
            ]
            paths_of.append(
                {"nodes": along, "links": [names[link] for link in links], "rate": rate}
            )
    routers: dict[str, list[dict[str, Any]]] = {}
    for (router, target, name), paths in carried.items():
        total = sum(path["rate"] for path in paths)
        for path in paths:
            path["split"] = path["rate"] / total
        entry = {"target": target, "demand": total, "admitted": total, "shed": 0.0}
        routers.setdefault(router, []).append(
            entry | ({"class": name} if name else {}) | {"paths": paths}
        )
    figures = {"step": step, "steps": update.steps, "kept": update.kept}
    return {"topology": topology.name, "unit": "Gbit/s", "figures": figures, "routers": routers}


def update_outcome(config: UpdateConfig, _: Notify) -> Outcome:
    """`teal update`."""
    planned = run_update(config)
    shed = (
        ""
        if planned.kept >= 1 - 1e-6
        else f"; up to {100 * (1 - planned.kept):.3g}% of a demand is shed meanwhile"
    )
    return Outcome(
        text=(
            f"{config.out}: {planned.steps} step{'s' if planned.steps > 1 else ''}, no link above "
            f"its capacity{shed}"
        ),
        data={"out": str(config.out), "steps": planned.steps, "kept": planned.kept},
    )
