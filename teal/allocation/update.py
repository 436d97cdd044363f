r"""Hitless updates: steps from one allocation to another that never overload a link.

Within a step, routers change at different times: each path carries its old or its new flow, in any
combination.  With f_a[p] the flow of path p after step a, no combination overloads a link if

    load[e](max(f_{a-1}, f_a)) <= c[e]      for every link e and step a,

as in SWAN (Hong et al., SIGCOMM 2013, section 4.3).  For s steps, f_0 are the old flows, f_s the
new ones.  A linear program computes the flows f_1 .. f_{s-1} between them.  Its other variables are
m_a, the larger flow of each path in step a, and rho, the fraction of every demand that is served
throughout the update:

    max rho <= 1
    s.t.  sum of f_a over the paths of d >= rho min(flow of d under f_0, flow of d under f_s)
          for every demand d and 0 < a < s,
          m_a >= f_{a-1}, m_a >= f_a, load(m_a) <= c      for every step a.

If both allocations fill a link, rho = 1 may be impossible: traffic must be shed for a moment, less
with more steps.  :func:`plan_update` tries s = 1, 2, ... and returns the first update with rho = 1,
else the one with the largest rho.  The flows of the program are scaled down to the capacities in
float64, so that they are feasible whatever the solver's tolerance; rho is recomputed from them.

Axes: P paths of D demands, E links, s steps.
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

# Default of the largest number of steps.
MAX_STEPS = 6
# A served fraction rho of at least this value counts as 1: no traffic is shed.
_FULLY_SERVED = 1 - 1e-6
# Tolerated overload of a link by the old or new flows, as a share of its capacity.
_CAPACITY_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class PathIncidence:
    """Links and demand of each of P paths, and the capacities of E links.

    Attributes:
        incidence: (E, P) sparse matrix, 1 where a path uses a link.
        demand: (P,) index of the demand of each path.
        capacity: (E,) capacity of each link, Gbit/s; 0 for failed links.
    """

    incidence: sp.csr_array
    demand: Int64Array
    capacity: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """Path flows after each step of an update.

    Attributes:
        flows: (s + 1, P) Gbit/s; row a are the flows after step a, row 0 the old flows.
        min_served_fraction: rho, the smallest fraction of a demand that is served throughout the
            update, relative to the smaller of its old and new flow; 1 if nothing is shed.
    """

    flows: FloatArray
    min_served_fraction: float

    @property
    def steps(self) -> int:
        """Number of steps s of the update."""
        return len(self.flows) - 1


def worst_utilisation(paths: PathIncidence, old_flows: FloatArray, new_flows: FloatArray) -> float:
    """Return the largest utilisation of a link in any combination of old and new path flows.

    It is max over links e of load[e](max(old, new)) / c[e]; infinite if a failed link carries
    traffic.

    Args:
        paths: links of each path, and capacities.
        old_flows: (P,) Gbit/s before the step.
        new_flows: (P,) Gbit/s after the step.
    """
    load = paths.incidence @ np.maximum(old_flows, new_flows)
    live = paths.capacity > 0
    if (load[~live] > 0).any():
        return float("inf")
    return float((load[live] / paths.capacity[live]).max(initial=0.0))


def plan_update(
    paths: PathIncidence, old_flows: FloatArray, new_flows: FloatArray, max_steps: int = MAX_STEPS
) -> Update:
    """Return the hitless update with the fewest steps, or with the largest served fraction.

    Args:
        paths: links of the paths of both allocations, and capacities.
        old_flows: (P,) installed flows, Gbit/s, within the capacities.
        new_flows: (P,) flows to install, Gbit/s, within the capacities.
        max_steps: largest number of steps.

    Raises:
        SolverError: one of the two allocations overloads a link, or ``max_steps`` is 1 and one step
            may overload a link.
    """
    for name, flows in (("before", old_flows), ("after", new_flows)):
        if worst_utilisation(paths, flows, flows) > 1 + _CAPACITY_TOLERANCE:
            raise SolverError(
                f"update: the allocation {name} the update overloads a link; give an allocation "
                "that fits into the capacities"
            )
    # One step suffices if the larger flows of all paths fit.
    if worst_utilisation(paths, old_flows, new_flows) <= 1 + _CAPACITY_TOLERANCE:
        return Update(np.stack([old_flows, new_flows]), 1.0)
    # Increase the number of steps until nothing is shed; keep the best update.
    best: Update | None = None
    for steps in range(2, max_steps + 1):
        update = _update_in_steps(paths, old_flows, new_flows, steps)
        # Use more steps only for a larger served fraction rho, beyond the solver's tolerance.
        if best is None or update.min_served_fraction > best.min_served_fraction * (1 + 1e-6):
            best = update
        if update.min_served_fraction >= _FULLY_SERVED:
            break
    if best is None:
        raise SolverError(
            "update: a single step may overload a link; allow at least 2 steps (--max-steps)"
        )
    return best


def _update_in_steps(
    paths: PathIncidence, old_flows: FloatArray, new_flows: FloatArray, steps: int
) -> Update:
    """Return the update of s steps from the linear program.

    Its flows are scaled down to the capacities, and rho is computed from them. If the program is
    not solved, the intermediate flows are min(old, new), which always fit.

    Args:
        paths: links of the paths, and capacities.
        old_flows: (P,) installed flows, Gbit/s.
        new_flows: (P,) flows to install, Gbit/s.
        steps: number of steps s >= 2.
    """
    inner_flows = _solve_program(paths, old_flows, new_flows, steps)
    if inner_flows is None:
        inner_flows = np.stack([np.minimum(old_flows, new_flows)] * (steps - 1))
    inner_flows = _scale_to_capacities(paths, old_flows, inner_flows, new_flows)
    flows = np.vstack([old_flows, inner_flows, new_flows])
    return Update(flows, _min_served_fraction(paths, flows))


def _demand_incidence(paths: PathIncidence) -> sp.csr_array:
    """Return the sparse matrix (D, P) that is 1 where path p belongs to demand d, else 0."""
    num_paths = len(paths.demand)
    num_demands = int(paths.demand.max(initial=-1)) + 1
    return sp.csr_array(
        (np.ones(num_paths), (paths.demand, np.arange(num_paths))), shape=(num_demands, num_paths)
    )


def _min_served_fraction(paths: PathIncidence, flows: FloatArray) -> float:
    """Return rho of flows (s + 1, P) in Gbit/s: the smallest fraction of a demand that is served.

    rho = min(1, min over 0 < a < s and d of F_a[d] / min(F_0[d], F_s[d])), with F_a[d] the flow of
    demand d after step a; demands with a zero denominator do not count.
    """
    # (s + 1, D) flow of each demand, Gbit/s.
    demand_flow = (_demand_incidence(paths) @ flows.T).T
    min_end_flow = np.minimum(demand_flow[0], demand_flow[-1])
    is_counted = min_end_flow > 0
    return float(
        np.minimum(1.0, demand_flow[1:-1, is_counted] / min_end_flow[is_counted]).min(initial=1.0)
    )


def _scale_to_capacities(
    paths: PathIncidence, old_flows: FloatArray, inner_flows: FloatArray, new_flows: FloatArray
) -> FloatArray:
    """Return the intermediate flows, scaled down so that no step can overload a link.

    The program's solution may violate capacities within the solver's tolerance.  Each path is
    scaled by the factor that its most overloaded link needs; smaller flows never increase a load.

    Args:
        paths: links of the paths, and capacities.
        old_flows: (P,) f_0, Gbit/s.
        inner_flows: (s - 1, P) f_1 .. f_{s-1}, Gbit/s.
        new_flows: (P,) f_s, Gbit/s.
    """
    inner_flows = inner_flows.copy()
    # First and last step: f_0 and f_s are fixed, so only the increase above them is scaled, to the
    # capacity that they leave.
    for step, end_flows in ((0, old_flows), (-1, new_flows)):
        common_flow = np.minimum(inner_flows[step], end_flows)
        increase = np.maximum(inner_flows[step] - end_flows, 0)
        residual_capacity = np.maximum(paths.capacity - paths.incidence @ end_flows, 0)
        inner_flows[step] = common_flow + increase * _fitting_factor(
            paths, residual_capacity, increase
        )
    # Steps between: scale both flows of the step.
    for step in range(len(inner_flows) - 1):
        larger_flow = np.maximum(inner_flows[step], inner_flows[step + 1])
        inner_flows[step : step + 2] *= _fitting_factor(paths, paths.capacity, larger_flow)
    return inner_flows


def _fitting_factor(
    paths: PathIncidence, residual_capacity: FloatArray, flows: FloatArray
) -> FloatArray:
    """Return (P,) factors in [0, 1] that scale path flows down to the residual capacities.

    The factor of link e is min(1, residual[e] / load[e]); the factor of a path is the minimum of
    the factors of its links.

    Args:
        paths: links of the paths.
        residual_capacity: (E,) residual capacity, Gbit/s.
        flows: (P,) Gbit/s.
    """
    load = paths.incidence @ flows
    link_factor = np.where(
        load > residual_capacity, residual_capacity / np.where(load > 0, load, 1), 1.0
    )
    factor = np.ones(len(flows))
    # Minimum of link_factor over the links of each path.
    link, path = paths.incidence.nonzero()
    np.minimum.at(factor, path, link_factor[link])
    return factor


def _solve_program(
    paths: PathIncidence, old_flows: FloatArray, new_flows: FloatArray, steps: int
) -> FloatArray | None:
    """Solve the linear program of an update in s steps for its intermediate flows.

        max rho <= 1
        s.t.  load(m_a) <= c,  m_a >= f_{a-1},  m_a >= f_a       for a = 1 .. s,
              sum of f_a over the paths of d >= rho min(F_0[d], F_s[d])
              for every demand d and a = 1 .. s - 1,

    with f_0 the old and f_s the new flows, F their sums over the paths of each demand.  Variables
    are f_1 .. f_{s-1}, m_1 .. m_s (P each) and rho.  Solvers have absolute tolerances, so flows are
    in units of max(F_0[d], F_s[d]) and loads in units of the link capacity.

    Args:
        paths: links of the paths, and capacities.
        old_flows: (P,) f_0, Gbit/s.
        new_flows: (P,) f_s, Gbit/s.
        steps: number of steps s >= 2.

    Returns:
        (s - 1, P) f_1 .. f_{s-1}, Gbit/s; None if the program was not solved.
    """
    num_paths = len(old_flows)
    num_inner = steps - 1
    # Units of the variables: (P,) Gbit/s of the path's demand, and its inverse (0 for no demand).
    demand_incidence = _demand_incidence(paths)
    demand_flow = np.stack([demand_incidence @ old_flows, demand_incidence @ new_flows])
    max_end_flow = demand_flow.max(0)
    path_unit = max_end_flow[paths.demand]
    inverse_unit = np.where(path_unit > 0, 1 / np.where(path_unit > 0, path_unit, 1), 0)
    utilisation_matrix = _scaled_loads(paths, path_unit)
    variables = _Variables(num_paths, num_inner, steps)
    # Blocks of rows A x <= b.
    row_blocks = []
    rhs_blocks = []
    identity = sp.eye_array(num_paths, format="csr")
    for step in range(steps):
        # load(m) <= c; the old flows may exceed a capacity by rounding.
        row_blocks.append(variables.larger_flow(utilisation_matrix, step))
        rhs_blocks.append(np.maximum(1, utilisation_matrix @ (old_flows * inverse_unit)))
        # f - m <= 0 for the flows before and after the step; f_0 and f_s are constants.
        for flow_index, fixed_flow in ((step - 1, old_flows), (step, new_flows)):
            if 0 <= flow_index < num_inner:
                row_blocks.append(
                    variables.flow(identity, flow_index) - variables.larger_flow(identity, step)
                )
                rhs_blocks.append(np.zeros(num_paths))
            else:
                row_blocks.append(-variables.larger_flow(identity, step))
                rhs_blocks.append(-fixed_flow * inverse_unit)
    # rho min(F_0, F_s) - sum of f_a over the paths of the demand <= 0; rho is the last variable.
    num_demands = len(max_end_flow)
    # min(F_0, F_s) in units of max(F_0, F_s), (D,).
    min_end_share = np.where(
        max_end_flow > 0, demand_flow.min(0) / np.where(max_end_flow > 0, max_end_flow, 1), 0
    )
    rho_entries = (np.arange(num_demands), np.full(num_demands, variables.num_variables - 1))
    rho_rows = sp.csr_array(
        (min_end_share, rho_entries), shape=(num_demands, variables.num_variables)
    )
    for step in range(num_inner):
        row_blocks.append(sp.csr_array(-variables.flow(demand_incidence, step) + rho_rows))
        rhs_blocks.append(np.zeros(num_demands))
    # Maximise rho <= 1; flows of paths over failed links are fixed at 0.
    cost = np.zeros(variables.num_variables)
    cost[-1] = -1.0
    is_usable = (path_unit > 0) & ~_uses_failed_link(paths)
    upper_bounds = np.append(np.tile(np.where(is_usable, np.inf, 0), num_inner + steps), 1.0)
    result = solve_lp(
        cost, (sp.vstack(row_blocks, format="csr"), np.concatenate(rhs_blocks)), high=upper_bounds
    )
    if result.x is None or not result.is_solved:
        return None
    # The first variables are the intermediate flows; convert them to Gbit/s.
    flows = result.x[: num_paths * num_inner].reshape(num_inner, num_paths)
    return np.maximum(flows, 0) * path_unit


def _scaled_loads(paths: PathIncidence, path_unit: FloatArray) -> sp.csr_array:
    """Return the matrix from path variables (P,) to utilisations of the live links.

    Entry (e, p) is unit[p] / c[e] if path p uses link e; rows of failed links are dropped.

    Args:
        paths: links of the paths, and capacities.
        path_unit: (P,) Gbit/s of a path's variable with value 1.
    """
    is_live = paths.capacity > 0
    inverse_capacity = np.where(is_live, 1 / np.where(is_live, paths.capacity, 1), 0)
    utilisation_matrix = paths.incidence.multiply(inverse_capacity[:, None]).multiply(
        path_unit[None]
    )
    return sp.csr_array(utilisation_matrix)[is_live]


def _uses_failed_link(paths: PathIncidence) -> BoolArray:
    """Return (P,) whether each path uses a failed link, one with a capacity of 0."""
    is_failed = ~(paths.capacity > 0)
    if not is_failed.any():
        return np.zeros(len(paths.demand), dtype=bool)
    uses_failed_link: BoolArray = paths.incidence[is_failed].sum(0) > 0
    return uses_failed_link


@dataclasses.dataclass(frozen=True)
class _Variables:
    """Layout of the variables of the program: f_1 .. f_{s-1}, m_1 .. m_s (P each), then rho.

    Attributes:
        num_paths: P.
        num_inner: s - 1, the number of intermediate flows f.
        steps: s, the number of larger flows m.
    """

    num_paths: int
    num_inner: int
    steps: int

    @property
    def num_variables(self) -> int:
        """Number of all variables: s - 1 flows f and s flows m of P paths each, and rho."""
        return self.num_paths * (self.num_inner + self.steps) + 1

    def flow(self, rows: sp.csr_array, index: int) -> sp.csr_array:
        """Return n constraint rows over all variables, which are 0 except on one flow f.

        Args:
            rows: (n, P) coefficients of the flow f_{index + 1}.
            index: index of the flow, from 0.
        """
        # The Kronecker product places `rows` in one of the blocks of P columns; rho gets a 0.
        num_blocks = self.num_inner + self.steps
        selector = sp.csr_array(([1.0], ([0], [index])), shape=(1, num_blocks))
        return sp.csr_array(sp.hstack([sp.kron(selector, rows), sp.csr_array((rows.shape[0], 1))]))

    def larger_flow(self, rows: sp.csr_array, index: int) -> sp.csr_array:
        """Return n constraint rows over all variables, which are 0 except on one larger flow m.

        Args:
            rows: (n, P) coefficients of the larger flow m_{index + 1}.
            index: index of the larger flow, from 0.
        """
        return self.flow(rows, self.num_inner + index)


# Files of the steps.
_STEP_FILES = "step-*.json"
# Smaller flows, relative to the path's largest flow of any step, are not written.
_MIN_RELATIVE_FLOW = 1e-9

# Source router, target router, class ("" without classes).
_Demand = tuple[str, str, str]
# Path: its demand, and the indices of its links in order.
_PathKey = tuple[_Demand, tuple[int, ...]]


def run_update(config: UpdateConfig) -> Update:
    """Read both allocations, plan the update, and write the allocation after each step.

    Args:
        config: settings of `teal update`.

    Returns:
        path flows after each step.

    Raises:
        InputError: invalid settings or an invalid file.
        SolverError: an allocation overloads a link, or ``max_steps`` does not suffice.
    """
    earlier_files = tuple(file.name for file in config.out.glob(_STEP_FILES))
    check_out_folder(config.out, earlier_files or ("step-1.json",), overwrite=config.overwrite)
    # Read the flows; P is the number of paths that the old or the new allocation uses.
    topology = topology_of(config)
    old_flow_by_path, new_flow_by_path = (
        _read_flows(file, topology) for file in (config.before, config.after)
    )
    path_keys = list(dict.fromkeys([*old_flow_by_path, *new_flow_by_path]))
    demands = list(dict.fromkeys(demand for demand, _ in path_keys))
    demand_index = {demand: d for d, demand in enumerate(demands)}
    # Sparse (E, P) incidence matrix of links and paths.
    link_index = np.array([link for _, links in path_keys for link in links], dtype=np.int64)
    path_index = np.repeat(np.arange(len(path_keys)), [len(links) for _, links in path_keys])
    incidence = sp.csr_array(
        (np.ones(len(link_index)), (link_index, path_index)),
        shape=(topology.num_links, len(path_keys)),
    )
    paths = PathIncidence(
        incidence,
        np.array([demand_index[demand] for demand, _ in path_keys], dtype=np.int64),
        topology.capacity,
    )
    # Plan the update from (P,) old to new flows, 0 for paths of the other allocation.
    old_flows, new_flows = (
        np.array([flow_by_path.get(key, 0.0) for key in path_keys])
        for flow_by_path in (old_flow_by_path, new_flow_by_path)
    )
    update = plan_update(paths, old_flows, new_flows, config.max_steps)
    # Write a file for each step.
    remove_files(config.out, earlier_files)
    for step in range(1, update.steps + 1):
        document = _step_document(topology, path_keys, update.flows[step], update, step)
        with atomic_file(config.out / f"step-{step}.json") as temporary:
            temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
    return update


def _read_flows(file: Path, topology: Topology) -> dict[_PathKey, float]:
    """Read the flow of each path of an allocation file.

    Args:
        file: .json file of an allocation.
        topology: network of the node and link names.

    Returns:
        demand and link indices of a path -> its flow, Gbit/s.
    """
    node_names = topology.node_names
    # `stored_paths` maps (source index, target index, class) to the rate of each path's links.
    return {
        ((node_names[source], node_names[target], class_name), links): rate
        for (source, target, class_name), paths in stored_paths(
            read_allocation(file), topology, str(file)
        ).items()
        for links, rate in paths.items()
    }


def _step_document(
    topology: Topology, path_keys: list[_PathKey], flows: FloatArray, update: Update, step: int
) -> dict[str, Any]:
    """Return the allocation after a step as a JSON document, in the format of `teal solve --out`.

    Splits are fractions of the demand's flow in this step.

    Args:
        topology: network.
        path_keys: demand and links of each of P paths.
        flows: (P,) flows after the step, Gbit/s.
        update: whole update.
        step: number of the step, from 1.
    """
    # Paths with traffic, by demand.
    link_names = topology.link_names()
    node_names = topology.node_names
    max_flows = update.flows.max(0)
    paths_by_demand: dict[_Demand, list[dict[str, Any]]] = {}
    for (demand, links), rate, max_rate in zip(
        path_keys, flows.tolist(), max_flows.tolist(), strict=True
    ):
        demand_paths = paths_by_demand.setdefault(demand, [])
        if rate > _MIN_RELATIVE_FLOW * max_rate:
            path_nodes = [
                node_names[topology.link_source[links[0]]],
                *(node_names[topology.link_target[link]] for link in links),
            ]
            demand_paths.append(
                {"nodes": path_nodes, "links": [link_names[link] for link in links], "rate": rate}
            )
    # Demands by source router.
    routers: dict[str, list[dict[str, Any]]] = {}
    for (router, target, class_name), paths in paths_by_demand.items():
        demand_flow = sum(path["rate"] for path in paths)
        for path in paths:
            path["split"] = path["rate"] / demand_flow
        entry = {"target": target, "demand": demand_flow, "admitted": demand_flow, "shed": 0.0}
        routers.setdefault(router, []).append(
            entry | ({"class": class_name} if class_name else {}) | {"paths": paths}
        )
    figures = {"step": step, "steps": update.steps, "kept": update.min_served_fraction}
    return {"topology": topology.name, "unit": "Gbit/s", "figures": figures, "routers": routers}


def update_outcome(config: UpdateConfig, _: Notify) -> Outcome:
    """Run `teal update`; return its result as text and as JSON data."""
    update = run_update(config)
    # Mention shed traffic unless rho counts as 1.
    shed_text = (
        ""
        if update.min_served_fraction >= 1 - 1e-6
        else f"; up to {100 * (1 - update.min_served_fraction):.3g}% of a demand is shed meanwhile"
    )
    return Outcome(
        text=(
            f"{config.out}: {update.steps} step{'s' if update.steps > 1 else ''}, no link above "
            f"its capacity{shed_text}"
        ),
        data={
            "out": str(config.out),
            "steps": update.steps,
            "kept": update.min_served_fraction,
        },
    )
