"""The public API: what ``import teal`` offers, loaded on first use (``teal --help`` need not wait for torch)."""

from .allocation import Allocation, Status
from .assessment import Assessment, assess
from .bounds import all_paths_bound, dual_bound, scaled_dual_bound
from .errors import InputError, SolverError, TealError
from .feasibility import Violations, violations
from .formats import load_topology, load_traffic, save_traffic
from .network import PathMethod, PathSet, PathWeight, Topology, TrafficMatrices, compute_paths
from .objectives import Objective, ObjectiveName
from .pathops import PathOps, make_path_ops
from .problem import Problem
from .schemes import Scheme, Starter, make_scheme, register_scheme, scheme_names
from .solvers.pdhg import PdhgResult, PdhgState, solve
from .solvers.projection import project

__version__: str

__all__ = [
    "Allocation",
    "Assessment",
    "InputError",
    "Objective",
    "ObjectiveName",
    "PathMethod",
    "PathOps",
    "PathSet",
    "PathWeight",
    "PdhgResult",
    "PdhgState",
    "Problem",
    "Scheme",
    "SolverError",
    "Starter",
    "Status",
    "TealError",
    "Topology",
    "TrafficMatrices",
    "Violations",
    "all_paths_bound",
    "assess",
    "compute_paths",
    "dual_bound",
    "load_topology",
    "load_traffic",
    "make_path_ops",
    "make_scheme",
    "project",
    "register_scheme",
    "save_traffic",
    "scaled_dual_bound",
    "scheme_names",
    "solve",
    "violations",
]
