"""The public names of this package."""

from .api import estimate, simulate, survey, upgrade
from .counters.check import Check, Checker
from .counters.estimate import CheckRun, EstimateRun
from .counters.estimator import Estimate, Estimator
from .counters.repair import Repaired, repair
from .counters.worst_load import WorstLoad, worst_load
from .readings.files import load_counters, save_counters
from .readings.readings import Counters
from .routing.measurements import ecmp_measurements, path_measurements, policy_measurements

__all__ = [
    "Check",
    "CheckRun",
    "Checker",
    "Counters",
    "Estimate",
    "EstimateRun",
    "Estimator",
    "Repaired",
    "WorstLoad",
    "ecmp_measurements",
    "estimate",
    "load_counters",
    "path_measurements",
    "policy_measurements",
    "repair",
    "save_counters",
    "simulate",
    "survey",
    "upgrade",
    "worst_load",
]
