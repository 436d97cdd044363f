"""The public API: what ``import teal`` offers, loaded on first use."""

import typing

from .allocation.allocate import AllocatedHistory
from .api import allocate
from .app import plot
from .errors import InputError, SolverError, TealError
from .formats import load_topology, load_traffic, save_topology, save_traffic
from .network import PathMethod, PathSet, PathWeight, Topology, TrafficMatrices, compute_paths
from .network.bandwidth_functions import BandwidthFunctions
from .network.ecmp import EcmpDag
from .network.shards import PathSearch
from .nn.flow_gnn_config import register_model
from .objectives import Objective, ObjectiveName, register_objective
from .pathops import PathOps, make_path_ops
from .problem import (
    Allocation,
    Assessment,
    ClassFigures,
    Figures,
    Problem,
    Status,
    Violations,
    all_paths_bound,
    assess,
    dual_bound,
    priority_problem,
    scaled_dual_bound,
    violations,
)
from .schemes import Follower, Scheme, make_scheme, register_scheme, scheme_names
from .schemes.hedges import hedge_names, make_hedge, register_hedge
from .schemes.models import load_model
from .schemes.past import Hedge, Past
from .solvers.candidates import ChosenPaths, choose_paths
from .solvers.layer import OptimalValue, optimal_value, smooth_splits
from .solvers.pdhg.scenarios.solver import ScenarioResult, solve_scenarios
from .solvers.pdhg.shards.sharded import ShardedProblem, ShardedResult
from .solvers.pipeline import solve
from .solvers.projection import project
from .solvers.result import SolveResult, SolveState, Starter

__version__: str

# Names of the installed packages, which `import teal` has too (group ``teal.packages``).
def __getattr__(name: str) -> typing.Any: ...

__all__ = [
    "AllocatedHistory",
    "Allocation",
    "Assessment",
    "BandwidthFunctions",
    "ChosenPaths",
    "ClassFigures",
    "EcmpDag",
    "Figures",
    "Follower",
    "Hedge",
    "InputError",
    "Objective",
    "ObjectiveName",
    "OptimalValue",
    "Past",
    "PathMethod",
    "PathOps",
    "PathSearch",
    "PathSet",
    "PathWeight",
    "Problem",
    "ScenarioResult",
    "Scheme",
    "ShardedProblem",
    "ShardedResult",
    "SolveResult",
    "SolveState",
    "SolverError",
    "Starter",
    "Status",
    "TealError",
    "Topology",
    "TrafficMatrices",
    "Violations",
    "all_paths_bound",
    "allocate",
    "assess",
    "choose_paths",
    "compute_paths",
    "dual_bound",
    "hedge_names",
    "load_model",
    "load_topology",
    "load_traffic",
    "make_hedge",
    "make_path_ops",
    "make_scheme",
    "optimal_value",
    "plot",
    "priority_problem",
    "project",
    "register_hedge",
    "register_model",
    "register_objective",
    "register_scheme",
    "save_topology",
    "save_traffic",
    "scaled_dual_bound",
    "scheme_names",
    "smooth_splits",
    "solve",
    "solve_scenarios",
    "violations",
]
