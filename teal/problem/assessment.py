"""The figures of an allocation: value, certified gap, utilisation, violations.  Measured alike for
every scheme.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from teal.objectives import ObjectiveName
from teal.problem.allocation import Allocation, ProgramPrices, Status
from teal.problem.bounds import from_score, gap, multiples, scaled_dual_bound, usable_prices
from teal.problem.fair_levels import FairFigures, fair_figures
from teal.problem.feasibility import TOLERANCE, check_shape, violations
from teal.problem.lines import Lines
from teal.problem.priority import ClassFigures, class_figures
from teal.problem.problem import Problem
from teal.problem.small import is_small, measured
from teal.spec import register


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of one matrix; NaN where there is no usable allocation.

    Attributes:
        value: value of the objective: weighted flow in Gbit/s, largest link utilisation, or least
            carried share; under priority the flow of all classes; under max_min the flow.
        satisfied_demand: share of all demand that is carried; 1 if there is no demand.
        bound: certified bound on the optimum, from the scheme's link prices; under max_min the sum
            of the most that each demand could have (see :mod:`teal.problem.fair_levels`).
        gap: largest relative distance of the value from the optimum: (bound - value) / bound, or
            (value - bound) / value for a minimum.
        max_link_utilisation: largest load / capacity.
        max_violation: largest violation of any rule (see :mod:`teal.problem.feasibility`); also of
            infeasible allocations.
    """

    value: float
    satisfied_demand: float
    bound: float
    gap: float
    max_link_utilisation: float
    max_violation: float


FIGURES = tuple(field.name for field in dataclasses.fields(Figures))


class WithLines:
    """Results with lines of a certificate, by the objective that they belong to."""

    lines: Lines | None

    @property
    def classes(self) -> ClassFigures | None:
        """The lines under priority."""
        return self.lines if isinstance(self.lines, ClassFigures) else None

    @property
    def fair(self) -> FairFigures | None:
        """The lines under max_min."""
        return self.lines if isinstance(self.lines, FairFigures) else None


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate(WithLines):
    """The value that an allocation of B matrices reaches, and the bound that its prices prove.

    Attributes:
        value: (B,) of the objective.
        bound: (B,) on the optimum.
        gap: (B,) how far the optimum may be.
        lines: lines of a sequence of programs.
    """

    value: Tensor
    bound: Tensor
    gap: Tensor
    lines: Lines | None = None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Assessment(Certificate):
    """The figures of B matrices, as float64 tensors (B,); see :class:`Figures` for their meaning.

    Attributes:
        status: status of the scheme, or infeasible where the validator contradicts it.
        utilisation: (B, E) of the links, whatever the status.
    """

    status: tuple[Status, ...]
    satisfied_demand: Tensor
    max_link_utilisation: Tensor
    max_violation: Tensor
    utilisation: Tensor

    def figures(self, row: int) -> Figures:
        """The figures of one matrix."""
        return Figures(**{name: float(getattr(self, name)[row]) for name in FIGURES})


@runtime_checkable
class Certify(Protocol):
    """Computes the certificate of an objective."""

    def __call__(
        self, problem: Problem, splits: Tensor, prices: Tensor, program_prices: ProgramPrices | None
    ) -> Certificate:
        """The certificate, in float64.

        Args:
            problem: B matrices.
            splits: (B, D, K).
            prices: (B, E) of the allocation, 0 if it has none.
            program_prices: prices of each program of a sequence; None if the allocation has none.
        """
        ...


def _of_program(
    problem: Problem, splits: Tensor, prices: Tensor, program_prices: ProgramPrices | None
) -> Certificate:
    value, bound = problem.value(splits), scaled_dual_bound(problem, prices)
    return Certificate(value, bound, gap(problem, value, bound))


def _of_classes(
    problem: Problem, splits: Tensor, prices: Tensor, program_prices: ProgramPrices | None
) -> Certificate:
    classes = class_figures(
        problem, splits, prices if program_prices is None else program_prices.prices
    )
    return Certificate(
        classes.value.sum(1), classes.bound.sum(1), classes.gap.amax(1), lines=classes
    )


def _of_levels(
    problem: Problem, splits: Tensor, prices: Tensor, program_prices: ProgramPrices | None
) -> Certificate:
    fair = fair_figures(problem, splits, program_prices)
    value, bound = problem.value(splits), fair.limit.sum(1)
    return Certificate(value, bound, gap(problem, value, bound), lines=fair)


_CERTIFICATES: dict[str, Certify] = {
    ObjectiveName.PRIORITY: _of_classes,
    ObjectiveName.MAX_MIN: _of_levels,
}


def register_certificate(name: str, certify: Certify, *, replace: bool = False) -> None:
    """How to measure and bound an objective that is a sequence of programs.

    Args:
        name: name of the objective; see :func:`teal.objectives.register_objective`.
        certify: computes the certificate.
        replace: whether it may take the place of another one.

    Raises:
        InputError: the name is taken.
    """
    register(_CERTIFICATES, "certificate", name, certify, replace=replace)


@runtime_checkable
class HasAllocation(Protocol):
    """A result that holds an allocation, such as that of :func:`teal.solve`."""

    @property
    def allocation(self) -> Allocation:
        """The allocation of all matrices."""
        ...


class _Measures(NamedTuple):
    """The parts of an assessment.

    Attributes:
        demand: (B,) Gbit/s.
        carried: (B,) Gbit/s.
        max_link_utilisation: (B,).
        violation: (B,) largest violation of a rule; infinite where a split is NaN.
        utilisation: (B, E).
        certificate: value, bound and gap.
    """

    demand: Tensor
    carried: Tensor
    max_link_utilisation: Tensor
    violation: Tensor
    utilisation: Tensor
    certificate: Certificate


def _measured(
    problem: Problem,
    splits: Tensor,
    prices: Tensor,
    program_prices: ProgramPrices | None,
    certify: Certify,
) -> _Measures:
    has_nan = splits.isnan().flatten(1).any(1)
    splits = splits.nan_to_num(nan=0.0)
    loads = problem.loads(torch.where((problem.demand > 0)[..., None], splits, 0))
    utilisation = problem.utilisation_of(loads)
    return _Measures(
        problem.demand.sum(1),
        problem.flows(splits).sum((1, 2)),
        utilisation.amax(1),
        torch.where(has_nan, torch.inf, violations(problem, splits, loads).largest),
        utilisation,
        certify(problem, splits, prices, program_prices),
    )


def _measured_small(problem: Problem, splits: Tensor, prices: Tensor) -> _Measures:
    """:func:`_measured` by one kernel."""
    usable = usable_prices(problem, prices)
    found = measured(problem, splits, usable, multiples(problem))
    value = torch.from_numpy(found.value)
    bound = from_score(problem, torch.from_numpy(found.score), usable)
    return _Measures(
        torch.from_numpy(found.demand),
        torch.from_numpy(found.carried),
        torch.from_numpy(found.max_link_utilisation),
        torch.from_numpy(found.violation),
        torch.from_numpy(found.utilisation),
        Certificate(value, bound, gap(problem, value, bound)),
    )


def assess(problem: Problem, allocation: Allocation | HasAllocation) -> Assessment:
    """Measure ``allocation`` in float64, independently of the scheme that made it.

    Without prices the bound is the trivial one: all routable demand at its best value, or theta >=
    0. An allocation that breaks a rule by more than 1e-6, or contains NaN, is infeasible whatever
       its status says, and so is one under least_cost while a demand has no path.
    An allocation over paths of its own is measured, and bounded, over those.
    """
    problem = problem.to(torch.float64)
    if not isinstance(allocation, Allocation):
        allocation = allocation.allocation
    if allocation.paths is not None:
        problem = problem.with_paths(allocation.paths)
    check_shape(problem, allocation.splits)
    splits = allocation.splits.to(problem.demand)
    prices = torch.zeros_like(problem.capacity) if allocation.prices is None else allocation.prices
    certify = _CERTIFICATES.get(problem.objective.name, _of_program)
    if certify is _of_program and is_small(problem):
        measures = _measured_small(problem, splits, prices)
    else:
        measures = _measured(problem, splits, prices, allocation.program_prices, certify)
    certificate, total = measures.certificate, measures.demand
    breaks_rule = measures.violation > TOLERANCE
    if problem.objective.rules.may_have_no_allocation:  # all demand must be carried
        breaks_rule = breaks_rule | ((problem.demand > 0) & ~problem.routable).any(1)
    status = tuple(
        Status.INFEASIBLE if claimed.usable and is_broken else claimed
        for claimed, is_broken in zip(allocation.status, breaks_rule.tolist(), strict=True)
    )
    satisfied = torch.where(total > 0, measures.carried / total.clamp(min=_LEAST_TOTAL), 1)
    return Assessment(
        status=status,
        value=_of_usable(certificate.value, status),
        satisfied_demand=_of_usable(satisfied, status),
        bound=_of_usable(certificate.bound, status),
        gap=_of_usable(certificate.gap, status),
        max_link_utilisation=_of_usable(measures.max_link_utilisation, status),
        max_violation=_of_usable(measures.violation, allocation.status),
        utilisation=measures.utilisation,
        lines=certificate.lines,
    )


_LEAST_TOTAL = 1e-300  # Gbit/s of all demands, of which a share can be formed


def _of_usable(values: Tensor, status: Sequence[Status]) -> Tensor:
    """(B,) the values of matrices whose allocation can be used, NaN of the others."""
    if all(one.usable for one in status):
        return values
    is_usable = torch.tensor([one.usable for one in status], device=values.device)
    return torch.where(is_usable, values, torch.nan)


_TAIL = 0.99  # share of the volume
_LEAST_PART = 1e-9  # of what a demand sends: a path that carries less is not used


class LatencyFigures(NamedTuple):
    """Latency of one matrix; NaN where nothing is carried.

    Attributes:
        mean: ms, over the volume.
        tail: ms, least that 99% of the volume do not exceed.
        stretch: largest latency of a path that is used over that of the demand's fastest live
            candidate path.
    """

    mean: float
    tail: float
    stretch: float


def latency_figures(problem: Problem, splits: Tensor) -> LatencyFigures:
    """Latency of the flow of a problem of one matrix under splits (D, K)."""
    flow = problem.flows(splits[None].to(problem.demand))[0].double()
    latency = torch.as_tensor(problem.topology.latency, device=flow.device)[None]
    of_path = problem.ops.path_sum(latency)[0].expand_as(flow)
    fastest = torch.where(problem.path_mask[0], of_path, torch.inf).amin(-1, keepdim=True)
    used = flow > _LEAST_PART * flow.sum(-1, keepdim=True)
    if not bool(used.any()):
        return LatencyFigures(float("nan"), float("nan"), float("nan"))
    values, order = of_path[used].sort()
    volume = flow[used][order].cumsum(0)
    at = int(torch.searchsorted(volume, _TAIL * volume[-1] * (1 - 1e-12)))
    mean = float((of_path * flow)[used].sum() / volume[-1])
    return LatencyFigures(mean, float(values[at]), float((of_path / fastest)[used].max()))
