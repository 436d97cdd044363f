"""Teal: learned traffic engineering for wide-area networks.  This is the public API.

>>> import teal
>>> topology = teal.load_topology("b4")
>>> traffic = teal.load_traffic("gravity:seed=0,count=10,load=2", topology)
>>> paths = teal.compute_paths(topology, traffic.pairs)
>>> problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0]))
>>> allocation = teal.make_scheme("lp-all").solve(problem)  # or "teal", with a model's folder
>>> teal.assess(problem, allocation).gap
"""

from teal.allocation import Allocation, Status
from teal.assessment import Assessment, assess
from teal.bounds import dual_bound, scaled_dual_bound
from teal.errors import InputError, SolverError, TealError
from teal.feasibility import Violations, violations
from teal.formats import load_topology, load_traffic, save_traffic
from teal.network import PathMethod, PathSet, PathWeight, Topology, TrafficMatrices, compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.pathops import PathOps, make_path_ops
from teal.problem import Problem
from teal.schemes import Scheme, make_scheme, register_scheme, scheme_names
from teal.solvers.projection import project

__version__ = "0.1.0"

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
    "Problem",
    "Scheme",
    "SolverError",
    "Status",
    "TealError",
    "Topology",
    "TrafficMatrices",
    "Violations",
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
    "violations",
]
