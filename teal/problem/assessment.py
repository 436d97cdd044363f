"""Assessment of an allocation, alike for every scheme.

Objective value, certified bound and gap, link utilisation, constraint violations and latency.
Entry points: :func:`assess`, :func:`latency_metrics`; :func:`register_certificate` adds objectives
that are sequences of programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from teal.deprecated import with_old_attributes
from teal.objectives import ObjectiveName
from teal.problem.allocation import Allocation, ProgramPrices, Status
from teal.problem.bounds import from_score, gap, multiples, scaled_dual_bound, usable_prices
from teal.problem.fair_levels import FairCertificates, fair_certificates
from teal.problem.feasibility import TOLERANCE, check_shape, violations
from teal.problem.part_certificates import PartCertificates
from teal.problem.priority import ClassCertificates, class_certificates
from teal.problem.problem import Problem
from teal.problem.small import is_small, measured
from teal.spec import register


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metrics:
    """Metrics of one matrix; NaN where there is no usable allocation.

    Attributes:
        value: value of the objective: weighted flow in Gbit/s, largest link utilisation, or
            smallest served fraction; under priority the flow of all classes; under max_min the
            total flow.
        satisfied_demand: share of all demand that is carried; 1 if there is no demand.
        bound: certified bound on the optimum, from the scheme's link prices; under max_min the sum
            of the upper bounds of the demands.
        gap: upper bound on the relative distance from the optimum: (bound - value) / bound, or
            (value - bound) / value for a minimum.
        max_link_utilisation: largest load / capacity.
        max_violation: largest violation of any rule, relative to a capacity or demand; also of
            infeasible allocations.
    """

    value: float
    satisfied_demand: float
    bound: float
    gap: float
    max_link_utilisation: float
    max_violation: float


METRICS = tuple(field.name for field in dataclasses.fields(Metrics))


@with_old_attributes
class WithPartCertificates:
    """Base class of results with certificates of classes or fair levels, whose type depends on the
    objective.

    Attributes:
        part_certificates: certificates of the parts of the demands; None for an objective with one
            program.
    """

    part_certificates: PartCertificates | None

    @property
    def classes(self) -> ClassCertificates | None:
        """Flow and bound of each class under priority; None under other objectives."""
        return (
            self.part_certificates
            if isinstance(self.part_certificates, ClassCertificates)
            else None
        )

    @property
    def fair(self) -> FairCertificates | None:
        """Fair levels with their bounds under max_min; None under other objectives."""
        return (
            self.part_certificates if isinstance(self.part_certificates, FairCertificates) else None
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate(WithPartCertificates):
    """Value of an allocation of B matrices, and the bound that its prices prove.

    Attributes:
        value: (B,) value of the objective.
        bound: (B,) bound on the optimum.
        gap: (B,) upper bound on the relative distance from the optimum.
        part_certificates: certificates of the classes or fair levels; None for an objective with
            one program.
    """

    value: Tensor
    bound: Tensor
    gap: Tensor
    part_certificates: PartCertificates | None = None


@with_old_attributes
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Assessment(Certificate):
    """Metrics of B matrices, as float64 tensors (B,); NaN without a usable allocation.

    Attributes:
        status: status of the scheme, or infeasible where the validator contradicts it.
        satisfied_demand: (B,) share of all demand that is carried.
        max_link_utilisation: (B,) largest load / capacity.
        max_violation: (B,) largest violation of any rule, relative to a capacity or demand.
        utilisation: (B, E) link utilisation, whatever the status.
    """

    status: tuple[Status, ...]
    satisfied_demand: Tensor
    max_link_utilisation: Tensor
    max_violation: Tensor
    utilisation: Tensor

    def metrics(self, row: int) -> Metrics:
        """Return the metrics of one matrix, by its index."""
        return Metrics(**{name: float(getattr(self, name)[row]) for name in METRICS})


@runtime_checkable
class Certify(Protocol):
    """Protocol of functions that compute value and bound of an objective from splits and prices."""

    def __call__(
        self, problem: Problem, splits: Tensor, prices: Tensor, program_prices: ProgramPrices | None
    ) -> Certificate:
        """Compute the certificate in float64.

        Args:
            problem: B matrices.
            splits: (B, D, K) share of each demand on each path.
            prices: (B, E) dual prices of the allocation, 0 if it has none.
            program_prices: prices of each program of a sequence (classes or fair levels); None if
                the allocation has none.
        """
        ...


def _certify_program(
    problem: Problem, splits: Tensor, prices: Tensor, program_prices: ProgramPrices | None
) -> Certificate:
    """Certify an objective that is one program: compute its value, and the best dual bound over
    multiples of the prices.
    """
    value = problem.value(splits)
    bound = scaled_dual_bound(problem, prices)
    return Certificate(value, bound, gap(problem, value, bound))


def _certify_classes(
    problem: Problem, splits: Tensor, prices: Tensor, program_prices: ProgramPrices | None
) -> Certificate:
    """Certify priority: compute flow and bound of each class, from the prices of its own program if
    given, else from the common prices.
    """
    classes = class_certificates(
        problem, splits, prices if program_prices is None else program_prices.prices
    )
    return Certificate(
        classes.value.sum(1), classes.bound.sum(1), classes.gap.amax(1), part_certificates=classes
    )


def _certify_levels(
    problem: Problem, splits: Tensor, prices: Tensor, program_prices: ProgramPrices | None
) -> Certificate:
    """Certify max_min: compute rate and upper bound of each demand, from the prices of each fair
    level.
    """
    fair = fair_certificates(problem, splits, program_prices)
    value = problem.value(splits)
    bound = fair.limit.sum(1)
    return Certificate(value, bound, gap(problem, value, bound), part_certificates=fair)


_CERTIFICATES: dict[str, Certify] = {
    ObjectiveName.PRIORITY: _certify_classes,
    ObjectiveName.MAX_MIN: _certify_levels,
}


def register_certificate(name: str, certify: Certify, *, replace: bool = False) -> None:
    """Register the certificate of an objective that is a sequence of programs.

    Args:
        name: name of the objective; see :func:`teal.objectives.register_objective`.
        certify: computes the certificate.
        replace: whether to replace an existing certificate.

    Raises:
        InputError: the name is taken.
    """
    register(_CERTIFICATES, "certificate", name, certify, replace=replace)


@runtime_checkable
class HasAllocation(Protocol):
    """Protocol of results that have an allocation, such as the result of :func:`teal.solve`."""

    @property
    def allocation(self) -> Allocation:
        """The allocation: splits, prices and status of all matrices."""
        ...


class _Metrics(NamedTuple):
    """Metrics of B allocations, before matrices without a usable allocation are marked by NaN.

    Attributes:
        demand: (B,) total demand, Gbit/s.
        carried: (B,) total flow, Gbit/s.
        max_link_utilisation: (B,) largest load / capacity.
        violation: (B,) largest violation of a rule; infinite where a split is NaN.
        utilisation: (B, E) load / capacity.
        certificate: value, bound and gap.
    """

    demand: Tensor
    carried: Tensor
    max_link_utilisation: Tensor
    violation: Tensor
    utilisation: Tensor
    certificate: Certificate


def _compute_metrics(
    problem: Problem,
    splits: Tensor,
    prices: Tensor,
    program_prices: ProgramPrices | None,
    certify: Certify,
) -> _Metrics:
    """Compute the metrics of an allocation of any problem, in torch.

    Args:
        problem: B matrices in float64.
        splits: (B, D, K) share of each demand on each path.
        prices: (B, E) dual prices, 0 for none.
        program_prices: prices of each program of a sequence; None for none.
        certify: computes value and bound.
    """
    has_nan = splits.isnan().flatten(1).any(1)
    splits = splits.nan_to_num(nan=0.0)
    loads = problem.loads(torch.where((problem.demand > 0)[..., None], splits, 0))
    utilisation = problem.utilisation_of(loads)
    return _Metrics(
        problem.demand.sum(1),
        problem.flows(splits).sum((1, 2)),
        utilisation.amax(1),
        torch.where(has_nan, torch.inf, violations(problem, splits, loads).largest),
        utilisation,
        certify(problem, splits, prices, program_prices),
    )


def _compute_small_metrics(problem: Problem, splits: Tensor, prices: Tensor) -> _Metrics:
    """Compute the metrics of an allocation of a small problem by one compiled kernel.

    Args:
        problem: B matrices that :func:`is_small` accepts.
        splits: (B, D, K) share of each demand on each path.
        prices: (B, E) dual prices, 0 for none.
    """
    finite_prices = usable_prices(problem, prices)
    metrics = measured(problem, splits, finite_prices, multiples(problem))
    value = torch.from_numpy(metrics.value)
    bound = from_score(problem, torch.from_numpy(metrics.score), finite_prices)
    return _Metrics(
        torch.from_numpy(metrics.demand),
        torch.from_numpy(metrics.carried),
        torch.from_numpy(metrics.max_link_utilisation),
        torch.from_numpy(metrics.violation),
        torch.from_numpy(metrics.utilisation),
        Certificate(value, bound, gap(problem, value, bound)),
    )


def assess(problem: Problem, allocation: Allocation | HasAllocation) -> Assessment:
    """Compute value, certified bound, utilisation and violations of ``allocation`` in float64.

    The computation is independent of the scheme.  Without prices the bound is the trivial one: all
    routable demand at its best value, or a utilisation of 0.  An allocation that breaks a rule by
    more than 1e-6, or contains NaN, is infeasible whatever its status says; under least_cost also
    if a demand has no path.  An allocation with other paths than the problem is assessed over these
    paths.

    Args:
        problem: problem of B matrices.
        allocation: allocation of all matrices, or a result that has one.
    """
    # Problem in float64, over the paths of the allocation.
    problem = problem.to(torch.float64)
    if not isinstance(allocation, Allocation):
        allocation = allocation.allocation
    if allocation.paths is not None:
        problem = problem.with_paths(allocation.paths)
    check_shape(problem, allocation.splits)
    splits = allocation.splits.to(problem.demand)
    prices = torch.zeros_like(problem.capacity) if allocation.prices is None else allocation.prices
    # Value, bound and violations; small problems by one kernel.
    certify = _CERTIFICATES.get(problem.objective.name, _certify_program)
    if certify is _certify_program and is_small(problem):
        metrics = _compute_small_metrics(problem, splits, prices)
    else:
        metrics = _compute_metrics(problem, splits, prices, allocation.program_prices, certify)
    certificate = metrics.certificate
    total_demand = metrics.demand
    # The validator overrides the status of the scheme.
    breaks_rule = metrics.violation > TOLERANCE
    # Under least_cost a demand without a live path makes the program infeasible.
    if problem.objective.rules.may_be_infeasible:
        breaks_rule = breaks_rule | ((problem.demand > 0) & ~problem.routable).any(1)
    status = tuple(
        Status.INFEASIBLE if scheme_status.usable and is_broken else scheme_status
        for scheme_status, is_broken in zip(allocation.status, breaks_rule.tolist(), strict=True)
    )
    satisfied_share = torch.where(
        total_demand > 0, metrics.carried / total_demand.clamp(min=_MIN_TOTAL_DEMAND), 1
    )
    return Assessment(
        status=status,
        value=_nan_unless_usable(certificate.value, status),
        satisfied_demand=_nan_unless_usable(satisfied_share, status),
        bound=_nan_unless_usable(certificate.bound, status),
        gap=_nan_unless_usable(certificate.gap, status),
        max_link_utilisation=_nan_unless_usable(metrics.max_link_utilisation, status),
        max_violation=_nan_unless_usable(metrics.violation, allocation.status),
        utilisation=metrics.utilisation,
        part_certificates=certificate.part_certificates,
    )


# Smallest total demand in Gbit/s, to avoid division by 0.
_MIN_TOTAL_DEMAND = 1e-300


def _nan_unless_usable(values: Tensor, status: Sequence[Status]) -> Tensor:
    """Return the values (B,) of matrices with a usable status, and NaN for the others."""
    if all(matrix_status.usable for matrix_status in status):
        return values
    is_usable = torch.tensor(
        [matrix_status.usable for matrix_status in status], device=values.device
    )
    return torch.where(is_usable, values, torch.nan)


# Quantile of the tail latency, by volume.
_TAIL_QUANTILE = 0.99
# Smallest share of a demand's flow on a path that counts as used.
_MIN_PATH_SHARE = 1e-9


class LatencyMetrics(NamedTuple):
    """Path latency of the flow of one matrix; NaN if nothing is carried.

    Attributes:
        mean: mean latency weighted by volume, ms.
        tail: 99th percentile of the latency by volume, ms.
        stretch: largest latency of a used path over the latency of the demand's fastest live
            candidate path.
    """

    mean: float
    tail: float
    stretch: float


def latency_metrics(problem: Problem, splits: Tensor) -> LatencyMetrics:
    """Return mean, tail and stretch of the latency of one matrix's flow.

    Args:
        problem: problem with B = 1.
        splits: (D, K) share of each demand on each path.
    """
    flow = problem.flows(splits[None].to(problem.demand))[0].double()
    latency = torch.as_tensor(problem.topology.latency, device=flow.device)[None]
    path_latency = problem.ops.path_sum(latency)[0].expand_as(flow)
    # (D, 1) latency of the fastest live path.
    min_latency = torch.where(problem.path_mask[0], path_latency, torch.inf).amin(-1, keepdim=True)
    # (D, K) paths that carry a non-negligible part of their demand's flow.
    is_used = flow > _MIN_PATH_SHARE * flow.sum(-1, keepdim=True)
    if not bool(is_used.any()):
        return LatencyMetrics(float("nan"), float("nan"), float("nan"))
    # Percentile by volume, along the cumulative flow in order of latency.
    sorted_latency, order = path_latency[is_used].sort()
    cumulative_volume = flow[is_used][order].cumsum(0)
    # 1 - 1e-12: rounding must not move the percentile beyond the last path.
    tail_index = int(
        torch.searchsorted(cumulative_volume, _TAIL_QUANTILE * cumulative_volume[-1] * (1 - 1e-12))
    )
    mean = float((path_latency * flow)[is_used].sum() / cumulative_volume[-1])
    return LatencyMetrics(
        mean, float(sorted_latency[tail_index]), float((path_latency / min_latency)[is_used].max())
    )
