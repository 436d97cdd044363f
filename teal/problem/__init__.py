"""Allocation problems, allocations, and their certified assessment.

:class:`Problem` is the input of every scheme, :class:`Allocation` its result, and :func:`assess`
measures an allocation and bounds its distance from the optimum.
"""

from teal.problem.allocation import Allocation, ProgramPrices, Status
from teal.problem.assessment import Assessment, Metrics, assess
from teal.problem.bounds import all_paths_bound, dual_bound, scaled_dual_bound
from teal.problem.fair_levels import FairCertificates
from teal.problem.feasibility import Violations, violations
from teal.problem.price_library import PriceLibrary
from teal.problem.priority import ClassCertificates, class_certificates, priority_problem
from teal.problem.problem import Problem

__all__ = [
    "Allocation",
    "Assessment",
    "ClassCertificates",
    "FairCertificates",
    "Metrics",
    "PriceLibrary",
    "Problem",
    "ProgramPrices",
    "Status",
    "Violations",
    "all_paths_bound",
    "assess",
    "class_certificates",
    "dual_bound",
    "priority_problem",
    "scaled_dual_bound",
    "violations",
]
