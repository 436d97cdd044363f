"""The public names of this package."""

from .api import simulate, upgrade
from .counters.check import Check, Checker
from .counters.estimator import Estimate, Estimator
from .counters.repair import Repaired, repair
from .counters.worst_load import WorstLoad, worst_load
from .readings.files import load_counters, save_counters
from .readings.readings import Counters
from .routing.measurements import ecmp_measurements, path_measurements, policy_measurements

__all__ = [
    "Check",
    "Checker",
    "Counters",
    "Estimate",
    "Estimator",
    "Repaired",
    "WorstLoad",
    "ecmp_measurements",
    "load_counters",
    "path_measurements",
    "policy_measurements",
    "repair",
    "save_counters",
    "simulate",
    "upgrade",
    "worst_load",
]
