"""Hedge ``mixture``: a weighted mean of other hedges' splits, whose weights are learned online.

The largest utilisation is convex in the splits: that of a weighted mean of splits is at most the
weighted mean of theirs.  With u_i[e] the utilisation of link e that hedge i alone would have
caused, over the interval's optimum, the loss of weights w is max_e sum_i w_i u_i[e], and its
subgradient is g_i = u_i[e*] on the most utilised link e*.  Under total_flow, the loss is the flow
that the mixture drops (:mod:`teal.solvers.pdhg.scenarios.dropped_flow`) over the optimal flow.  The
weights follow exponentiated gradient (Kivinen & Warmuth 1997) with fixed share (Herbster & Warmuth
1998), for each measured interval:

    w_i <- (1 - share) w_i exp(-rate g_i) / sum_j w_j exp(-rate g_j) + share p_i,

where p, which sums to 1, are the initial weights.  Regret bound: with R_t the range of g in
interval t, the sum of losses over T intervals exceeds that of hedge i by at most

    (ln(1 / p_i) + T ln(1 / (1 - share))) / rate + rate / 8 * sum_t R_t^2,

for any traffic, if each interval is measured before the next one is allocated for (lead 1).
"""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.problem import Problem
from teal.runtime.archives import check_npz
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import atomic_file
from teal.schemes.past import Hedge, Past
from teal.solvers import pipeline
from teal.solvers.pdhg.scenarios.dropped_flow import excess_and_shed
from teal.spec import Spec

DEFAULT = "last+peak12+saa12+saa144+residual36+residual144+residual288+static48"
# On networks with more than _MANY_DEMANDS demands, where saa takes a second.
DEFAULT_LARGE = "last+peak12+saa12"
_MANY_DEMANDS = 100_000
# Measured on Abilene, GEANT and a data-centre pod: from 2 to 10 the mean changes by 0.003, above
# it gets worse.
_LEARNING_RATE = 5.0
# Share of all weight that is redistributed in each interval, so that a hedge can recover.
_REDISTRIBUTED_WEIGHT = 0.001
# Initial weight of each hedge `residual` over that of each other one.  Measured on six stretches of
# four series: the mean ratio less that of residual144 is -0.38 to -0.07 points in the first 48
# intervals and -0.37 to +0.01 after them; with equal first weights it is -0.58 to +0.13 and -0.27
# to +0.04.
_RESIDUAL_WEIGHT = 8.0
# Past intervals that are replayed before the first allocation.
_REPLAYED_INTERVALS = 48
# Certified gap of the optimum that utilisations are divided by.
_OPTIMUM_GAP = 1e-2
# Weight of the newest interval in the moving average of losses.
_NEWEST_WEIGHT = 0.1


@dataclasses.dataclass(frozen=True)
class Regret:
    """Regret of a mixture: its total loss less that of the best of its hedges.

    Attributes:
        intervals: number of measured intervals.
        realised: the regret: sum of the losses of the mixture less the sum of those of the best
            hedge.
        limit: upper bound on the regret.
        best: name of the best hedge.
    """

    intervals: int
    realised: float
    limit: float
    best: str

    def __str__(self) -> str:
        """Return a sentence with the mean loss against the best hedge, and the regret bound, per
        interval.
        """
        return (
            f"mixture over {self.intervals} intervals: mean loss "
            f"{self.realised / max(1, self.intervals):+.4f} against "
            f"the best hedge, {self.best}; regret bound {self.limit / max(1, self.intervals):+.4f}"
        )


class Mixture:
    """Hedge ``mixture``: the weighted mean of the splits of n hedges, with weights learned online.

    A hedge allocates for an interval whose traffic matrix is unknown. Once the matrix is measured,
    the weights w are updated by exponentiated gradient with fixed share,

        w_i <- (1 - share) w_i exp(-rate g_i) / sum_j w_j exp(-rate g_j) + share p_i,

    with g the subgradient of the mixture's loss with respect to the weights, and p the initial
    weights.

    Args:
        hedges: hedges by name, or a function that makes them from the first past.
        rate: learning rate.
        share: share of the weight that is redistributed by the initial weights in each interval.
        warm_up: number of past intervals that are replayed before the first allocation.
        residual: initial weight of each hedge ``residual``; that of the others is 1. The weights
            are then scaled to a sum of 1.

    Attributes:
        weights: (n,) weights of the hedges, which sum to 1.
        recent_losses: (n,) exponential moving average of each hedge's loss less that of the
            mixture.
    """

    def __init__(
        self,
        hedges: Mapping[str, Hedge] | Callable[[Past], Mapping[str, Hedge]],
        rate: float = _LEARNING_RATE,
        share: float = _REDISTRIBUTED_WEIGHT,
        warm_up: int = _REPLAYED_INTERVALS,
        residual: float = _RESIDUAL_WEIGHT,
    ) -> None:
        self._make = hedges if callable(hedges) else lambda past: hedges
        self._rate = rate
        self._redistributed_share = share
        self._warm_up = warm_up
        self._residual_weight = residual
        self._hedges: dict[str, Hedge] = {}
        # Empty until the hedges are made from the first past.
        self.weights: FloatArray = np.zeros(0)
        self._initial_weights: FloatArray = np.zeros(0)
        self.recent_losses: FloatArray = np.zeros(0)
        # Sums over the measured intervals: losses (n,) of the hedges, loss of the mixture, and
        # squared ranges of the subgradients.
        self._hedge_losses = np.zeros(0)
        self._mixture_loss = 0.0
        self._squared_ranges = 0.0
        self._intervals = 0
        # Splits (n, D, K) of the hedges for matrices not measured so far, by index of the matrix.
        self._pending_splits: dict[int, Tensor] = {}

    def begin(self, past: Past) -> None:
        """Create the hedges and their initial weights; without effect if they exist.

        The first call of :meth:`allocate` does this, too.

        Args:
            past: network, and the matrices measured so far.
        """
        if not self._hedges:
            self._hedges = dict(self._make(past))
            initial = np.array(
                [
                    self._residual_weight if name.startswith("residual") else 1.0
                    for name in self._hedges
                ]
            )
            self._initial_weights = initial / initial.sum()
            self.weights = self._initial_weights
            self._hedge_losses = np.zeros(len(self._hedges))
            self.recent_losses = np.zeros(len(self._hedges))

    def allocate(self, past: Past) -> Tensor:
        """Return split ratios (D, K) for the next interval, after an update of the weights.

        Args:
            past: network, and the matrices measured so far.
        """
        decisions = self.decisions(past)
        return torch.einsum("n,ndk->dk", torch.from_numpy(self.weights), decisions)

    def decisions(self, past: Past) -> Tensor:
        """Return the splits (n, D, K) of all hedges for the next interval.

        First the weights are updated with all intervals measured since the last call. The first
        call replays the last intervals of the past.

        Args:
            past: network and matrices that are known so far.
        """
        self.begin(past)
        # First call: allocate for the last intervals, each from the matrices known before it.
        if not self._pending_splits and not self._intervals:
            for num_known in range(max(1, past.num_known - self._warm_up), past.num_known):
                self._decide(past.before(num_known))
        self._learn(past)
        return self._decide(past)

    def _decide(self, past: Past) -> Tensor:
        """Let all hedges allocate, and store their splits until the interval is measured.

        Args:
            past: network, and the matrices measured so far.

        Returns:
            (n, D, K) splits of the hedges.

        Raises:
            InputError: a hedge whose splits are over other paths.
        """
        per_hedge = {
            name: hedge.allocate(past).to(torch.float64) for name, hedge in self._hedges.items()
        }
        for name, splits in per_hedge.items():
            if splits.shape != past.network.paths.mask.shape:
                raise InputError.invalid(
                    "mixture", "of", f"hedge {name} does not split over the candidate paths"
                )
        splits = torch.stack(list(per_hedge.values()))
        self._pending_splits[past.traffic_row] = splits
        return splits

    def _learn(self, past: Past) -> None:
        """Update the weights with the intervals measured since the last call.

        Args:
            past: network, and the matrices measured so far.
        """
        for row in sorted(
            row for row in self._pending_splits if row < past.first_row + past.num_known
        ):
            splits = self._pending_splits.pop(row)
            problem = past.matrix(row)
            if problem is not None:
                self._observe(problem, splits)

    def _observe(self, problem: Problem, splits: Tensor) -> None:
        """Update losses and weights with one measured interval.

        Args:
            problem: matrix of the interval, B = 1.
            splits: (n, D, K) splits of the hedges for the interval.
        """
        # Losses of the hedges (n,) and of the mixture, and the subgradient (n,), as multiples of
        # the optimum. Programs that may drop traffic have the loss of the dropped flow.
        optimum = float(pipeline.solve(problem, gap=_OPTIMUM_GAP).value)
        repeated = problem.with_demand(problem.demand.expand(len(splits), -1))
        if not optimum > 0:
            return
        if not problem.demand_set.carries_all:
            losses, loss, gradient = _flow_losses(repeated, splits, self.weights, optimum)
        else:
            losses, loss, gradient = _utilisation_losses(repeated, splits, self.weights, optimum)
        if not np.isfinite(losses).all():
            return
        # Sums for the regret, and the moving average of relative losses.
        self._mixture_loss = self._mixture_loss + loss
        self._hedge_losses = self._hedge_losses + losses
        self._squared_ranges += float(np.ptp(gradient)) ** 2
        self._intervals += 1
        self.recent_losses += _NEWEST_WEIGHT * (losses - loss - self.recent_losses)
        # Exponentiated gradient with fixed share; the minimum is subtracted against underflow.
        updated = self.weights * np.exp(-self._rate * (gradient - gradient.min()))
        self.weights = (
            1 - self._redistributed_share
        ) * updated / updated.sum() + self._redistributed_share * self._initial_weights

    @property
    def regret(self) -> Regret:
        """The regret against the best hedge so far, and its upper bound.

        The bound is (ln(1 / p) + T ln(1 / (1 - share))) / rate + rate / 8 sum_t R_t^2, with p the
        initial weight of the best hedge, T the number of intervals, R_t the range of the
        subgradient in interval t, ``rate`` the learning rate, and ``share`` the redistributed share
        of the weight.
        """
        best = int(self._hedge_losses.argmin())
        # Terms ln(1 / p) + T ln(1 / (1 - share)) of the bound.
        log_terms = -np.log(self._initial_weights[best]) - self._intervals * np.log1p(
            -self._redistributed_share
        )
        return Regret(
            self._intervals,
            self._mixture_loss - float(self._hedge_losses[best]),
            float(log_terms / self._rate + self._rate / 8 * self._squared_ranges),
            list(self._hedges)[best],
        )

    def save(self, file: Path | str) -> None:
        """Write weights and losses to a .npz file; the state of the hedges is not stored.

        Args:
            file: the file.
        """
        with atomic_file(Path(file)) as temporary:
            np.savez(
                temporary,
                names=np.array(list(self._hedges)),
                weights=self.weights,
                losses=self._hedge_losses,
                recent_losses=self.recent_losses,
                sums=np.array([self._mixture_loss, self._squared_ranges, self._intervals]),
            )

    def restore(self, file: Path | str) -> None:
        """Read weights and losses from a file of :meth:`save`, after :meth:`begin` has made the
        hedges.

        Args:
            file: the file.

        Raises:
            InputError: a missing or damaged file, or the state of other hedges.
        """
        try:
            check_npz(Path(file))
            with np.load(file, allow_pickle=False) as stored:
                names, weights, sums = (stored[name] for name in ("names", "weights", "sums"))
                losses = stored["losses"]
                recent = (
                    stored["recent_losses"] if "recent_losses" in stored else np.zeros_like(losses)
                )
        except (EOFError, KeyError, OSError, ValueError, zipfile.BadZipFile):
            raise InputError.invalid(
                str(file), "", "not the state of a mixture of hedges, as written by the service"
            ) from None
        # All arrays must have an entry for each hedge, and the sums three.
        shapes = (weights.shape, losses.shape, recent.shape, sums.shape)
        if names.tolist() != list(self._hedges) or shapes != (*[self.weights.shape] * 3, (3,)):
            raise InputError(
                str(file), "hedges", ", ".join(self._hedges), ", ".join(map(str, names.tolist()))
            )
        self.weights = weights
        self._hedge_losses = losses
        self.recent_losses = recent
        self._mixture_loss = float(sums[0])
        self._squared_ranges = float(sums[1])
        self._intervals = int(sums[2])


def _utilisation_losses(
    problem: Problem, splits: Tensor, weights: FloatArray, optimum: float
) -> tuple[FloatArray, float, FloatArray]:
    """Return losses under max_link_utilisation, as multiples of the optimum.

    Let u_i[e] be the utilisation of link e by the splits of hedge i alone, over the optimum. The
    loss of hedge i is max_e u_i[e], that of the mixture with weights w is max_e sum_i w_i u_i[e]. A
    subgradient of the latter in w is u_i[e*], with e* the most utilised link.

    Args:
        problem: matrix of the interval, repeated for each of n hedges.
        splits: (n, D, K) splits of the hedges.
        weights: (n,) weights w of the mixture.
        optimum: optimal largest utilisation of the matrix.

    Returns:
        losses of the hedges (n,), loss of the mixture, and subgradient (n,).
    """
    utilisation = problem.utilisation(splits).numpy() / optimum
    # Utilisations (E,) of the mixture; its most utilised link gives loss and subgradient.
    mixture_utilisation = weights @ utilisation
    link = int(mixture_utilisation.argmax())
    return utilisation.max(1), float(mixture_utilisation[link]), utilisation[:, link]


def _flow_losses(
    problem: Problem, splits: Tensor, weights: FloatArray, optimum: float
) -> tuple[FloatArray, float, FloatArray]:
    """Return losses under total_flow: the flow that the splits drop, over the optimal flow.

    The dropped flow is the unsent demand (shed) plus the load above capacity of each link, which is
    max(0, excess). It is convex in the splits.

    Args:
        problem: matrix of the interval, repeated for each of n hedges.
        splits: (n, D, K) splits of the hedges.
        weights: (n,) weights of the mixture.
        optimum: optimal total flow of the matrix.

    Returns:
        losses of the hedges (n,), loss of the mixture, and subgradient (n,).
    """
    # Load less capacity (n, E) of each link, and unsent demand (n,), under each hedge's splits.
    excess, shed = (values.numpy() for values in excess_and_shed(problem, splits))
    # Excess (E,) of the mixture: a mean of those of the hedges, since the weights sum to 1.
    mixture_excess = weights @ excess
    # Links with an excess of the mixture count in the subgradient.
    gradient = shed + excess[:, mixture_excess > 0].sum(1)
    loss = weights @ shed + mixture_excess.clip(min=0).sum()
    losses = shed + excess.clip(min=0).sum(1)
    return losses / optimum, float(loss / optimum), gradient / optimum


def make(spec: Spec, model: Path | None) -> Mixture:
    """Make the hedge of a specification such as
    ``mixture[:of=auto,rate=5,share=0.001,warm-up=48,residual=8]``.

    Args:
        spec: the specification; hedges in ``of`` are separated by plus signs.
        model: checkpoint for hedges that need one; None for Teal's own.

    Raises:
        InputError: an unknown option or hedge, or a value out of its range.
    """
    from teal.schemes.hedges import make_hedge

    options = spec.parse_options(
        of="auto",
        rate=_LEARNING_RATE,
        share=_REDISTRIBUTED_WEIGHT,
        warm_up=_REPLAYED_INTERVALS,
        residual=_RESIDUAL_WEIGHT,
    )
    # Check the options.
    names = str(options["of"])
    for name, expected, is_valid in (
        ("of", "distinct names of hedges, separated by +", _has_distinct_names(names)),
        ("rate", "a number > 0", float(options["rate"]) > 0),
        ("share", "a number in [0, 1)", 0 <= float(options["share"]) < 1),
        ("residual", "a number > 0", float(options["residual"]) > 0),
        ("warm_up", "an integer >= 0", int(options["warm_up"]) >= 0),
    ):
        if not is_valid:
            raise InputError(spec.text, name, expected, options[name])

    hedges: dict[str, Hedge] | None = None
    # Make the hedges now, so that a fault is reported before anything slow.
    if names != "auto":
        hedges = {name: make_hedge(name, model) for name in names.split("+")}
    parameters = (
        float(options["rate"]),
        float(options["share"]),
        int(options["warm_up"]),
        float(options["residual"]),
    )
    return Mixture(hedges or default_hedges, *parameters)


def default_hedges(past: Past) -> dict[str, Hedge]:
    """Return the default hedges of a mixture by name: fewer on networks with many demands.

    Args:
        past: the known matrices, which give the number of demands.
    """
    from teal.schemes.hedges import make_hedge

    names = DEFAULT_LARGE if past.traffic.num_demands > _MANY_DEMANDS else DEFAULT
    return {name: make_hedge(name) for name in names.split("+")}


def default_mixture() -> Mixture:
    """Return the hedge ``mixture`` with its default options."""
    return Mixture(default_hedges)


def _has_distinct_names(names: str) -> bool:
    """Return whether the text is a list of distinct names, separated by plus signs."""
    hedges = names.split("+")
    return len(set(hedges)) == len(hedges) and all(hedges)
