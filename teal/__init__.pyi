"""The public API: what ``import teal`` offers, loaded on first use."""

import typing

import teal_availability
import teal_ip
import teal_next
import teal_study

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
    ClassCertificates,
    Metrics,
    PriceLibrary,
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
from .schemes.solve import solve
from .solvers.candidates import ChosenPaths, choose_paths
from .solvers.layer import OptimalValue, optimal_value, smooth_splits
from .solvers.level_growths import level_growths
from .solvers.pdhg.scenarios.solver import ScenarioResult, solve_scenarios
from .solvers.pdhg.shards.sharded import ShardedProblem, ShardedResult
from .solvers.projection import project
from .solvers.result import SolveResult, SolveState, Starter

__version__: str

# Names of the packages in the same wheel, which `import teal` has too (group ``teal.packages``);
# their functions have types in the packages.
AdmissionReport = teal_availability.AdmissionReport
AvailabilityReport = teal_availability.AvailabilityReport
Components = teal_availability.Components
ExpansionReport = teal_availability.ExpansionReport
Guarantee = teal_availability.Guarantee
MergedStates = teal_availability.MergedStates
Quantile = teal_availability.Quantile
Request = teal_availability.Request
States = teal_availability.States
SurvivalStates = teal_availability.SurvivalStates
admit: typing.Any
availability: typing.Any
common_quantile: typing.Any
components_of: typing.Any
expand: typing.Any
guarantee_common_fraction: typing.Any
guarantee_common_fractions: typing.Any
guarantee_min_cvar: typing.Any
guarantee_min_loss: typing.Any
merge_states: typing.Any
most_probable_states: typing.Any
peak_requests: typing.Any
survival_probabilities: typing.Any
Check = teal_ip.Check
CheckRun = teal_ip.CheckRun
Checker = teal_ip.Checker
Counters = teal_ip.Counters
Estimate = teal_ip.Estimate
EstimateRun = teal_ip.EstimateRun
Estimator = teal_ip.Estimator
Repaired = teal_ip.Repaired
WorstLoad = teal_ip.WorstLoad
ecmp_measurements: typing.Any
estimate: typing.Any
load_counters: typing.Any
path_measurements: typing.Any
policy_measurements: typing.Any
repair: typing.Any
save_counters: typing.Any
simulate: typing.Any
survey: typing.Any
upgrade: typing.Any
worst_load: typing.Any
NextIntervals = teal_next.NextIntervals
next_interval: typing.Any
vary: typing.Any
EvaluationReport = teal_study.EvaluationReport
FailurePlan = teal_study.FailurePlan
TrainReport = teal_study.TrainReport
evaluate: typing.Any
plan: typing.Any
register_learner: typing.Any
train: typing.Any

__all__ = [
    "AllocatedHistory",
    "Allocation",
    "Assessment",
    "BandwidthFunctions",
    "ChosenPaths",
    "ClassCertificates",
    "EcmpDag",
    "Follower",
    "Hedge",
    "InputError",
    "Metrics",
    "Objective",
    "ObjectiveName",
    "OptimalValue",
    "Past",
    "PathMethod",
    "PathOps",
    "PathSearch",
    "PathSet",
    "PathWeight",
    "PriceLibrary",
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
    "level_growths",
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
