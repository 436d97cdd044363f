"""Allocation problems, allocations, and their certified assessment.

:class:`Problem` is the input of every scheme, :class:`Allocation` its result, and :func:`assess`
measures an allocation and bounds its distance from the optimum.
"""

from teal.problem.allocation import Allocation, ProgramPrices, Status
from teal.problem.assessment import Assessment, Figures, assess
from teal.problem.bounds import all_paths_bound, dual_bound, scaled_dual_bound
from teal.problem.fair_levels import FairFigures
from teal.problem.feasibility import Violations, violations
from teal.problem.price_library import PriceLibrary
from teal.problem.priority import ClassFigures, class_figures, priority_problem
from teal.problem.problem import Problem

__all__ = [
    "Allocation",
    "Assessment",
    "ClassFigures",
    "FairFigures",
    "Figures",
    "PriceLibrary",
    "Problem",
    "ProgramPrices",
    "Status",
    "Violations",
    "all_paths_bound",
    "assess",
    "class_figures",
    "dual_bound",
    "priority_problem",
    "scaled_dual_bound",
    "violations",
]
