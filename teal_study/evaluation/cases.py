"""Cases of an evaluation: nominal matrices, and matrices under failures, noise, moved or scaled
demand.

The protocols of the field (Teal, section 5; NCFlow, section 5): nothing is retrained, and all cases
have the same candidate paths, with at least one for every demand that the network connects in a
case (:meth:`Cases.failures`).  Random draws depend on seed, protocol, level, draw and matrix alone,
so that all schemes get the same cases, whatever other protocols are evaluated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from enum import StrEnum

import numpy as np

from teal.app.instance import Instance, rows_of
from teal.errors import InputError
from teal.network import Topology, TrafficMatrices
from teal.network.disturbances import fail_cables, redistribute, temporal_noise
from teal.runtime.arrays import FloatArray, Int64Array
from teal_study.evaluation.settings import StudyOptions


class Protocol(StrEnum):
    """Kinds of changes to a matrix or network before schemes allocate the matrix."""

    OFFLINE = "offline"
    # Separate rows for the cases of OFFLINE (teal_study.evaluation.evaluate).
    ONLINE = "online"
    FAILURES = "failures"
    NOISE = "noise"
    SPATIAL = "spatial"
    SCALE = "scale"
    # The matrix is unchanged, and only a share of the volume may move.
    CHURN = "churn"


@dataclasses.dataclass(frozen=True)
class CaseLevel:
    """Strength of a protocol's change.

    Attributes:
        text: text of the level, such as ``5%``.
        value: the number, such as 0.05.
        relative: whether the number is a share, written with a per cent sign.
    """

    text: str
    value: float
    relative: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One matrix on one network on which schemes are evaluated.

    Attributes:
        protocol: kind of change.
        level: strength of the change, as it was written; ``""`` for protocols without levels.
        draw: index of the random draw.
        index: index of the matrix in the traffic.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s; 0 for failed links.
        max_churn: share of the volume that may move against the optimum of the previous matrix;
            None for no limit.
    """

    protocol: Protocol
    level: str
    draw: int
    index: int
    demand: FloatArray
    capacity: FloatArray
    max_churn: float | None = None

    @property
    def key(self) -> str:
        """Identifier of the case among the cases of one network and its traffic, such as
        ``failures/5%/0/12`` for protocol, level, draw and index.
        """
        return f"{self.protocol.value}/{self.level}/{self.draw}/{self.index}"


def parse_levels(
    option: str, text: str, *, counted: bool = False, shares: bool = False
) -> tuple[CaseLevel, ...]:
    """Parse the levels of an option: numbers separated by commas.

    Args:
        option: name of the option, for messages.
        text: the levels; "" for none.
        counted: whether levels are integers, or percentages of a whole: ``1,2,5%``.
        shares: whether all levels are percentages, with or without the sign: ``80,60,40,20%``.

    Raises:
        InputError: another format, a number that is not positive, or a repeated level.
    """
    # A level is a number or, if the option allows it, a percentage.
    levels = []
    for level_text in filter(None, (level_text.strip() for level_text in text.split(","))):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", level_text)
        expected = (
            "numbers such as 80,60,40,20%"
            if shares
            else f"numbers such as {'1,2,5%' if counted else '0.5,1,2'}"
        )
        if not match or not float(match[1]) > 0 or (match[2] and not (counted or shares)):
            raise InputError(option, "", expected, repr(level_text))
        is_share = shares or bool(match[2])
        value = float(match[1]) / (100 if is_share else 1)
        if (is_share and value > 1) or (counted and not is_share and value != int(value)):
            raise InputError(option, "", expected, repr(level_text))
        levels.append(CaseLevel(f"{match[1]}%" if is_share else match[1], value, is_share))
    if len({level.text for level in levels}) < len(levels):
        raise InputError.invalid(
            option, "", f"a level occurs twice in {text!r}", "list each level once"
        )
    return tuple(levels)


@dataclasses.dataclass(frozen=True, eq=False)
class Cases:
    """Cases of one network, matrix by matrix; the nominal case of each matrix comes first.

    Attributes:
        topology: the network, with its capacities before any failure of a case.
        traffic: the matrices.
        rows: indices of the matrices.
        levels: levels of each protocol that has levels (offline and online have none).
        draws: number of random draws of each level, for failures and noise.
        seed: seed of the draws.
    """

    topology: Topology
    traffic: TrafficMatrices
    rows: Int64Array
    levels: dict[Protocol, tuple[CaseLevel, ...]] = dataclasses.field(default_factory=dict)
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError for more failures than cables, or for noise with a single matrix."""
        if self.levels.get(Protocol.NOISE) and self.traffic.num_matrices < 2:
            raise InputError.invalid(
                "--noise",
                "traffic",
                "the traffic has one matrix, but the variance of the noise needs two or more",
            )
        for level in self.levels.get(Protocol.FAILURES, ()):
            num_cables = len(self.topology.cables())
            if not level.relative and level.value > num_cables:
                expected = f"at most the {num_cables} cables of {self.topology.name}"
                raise InputError("--failures", "", expected, level.text)

    def __len__(self) -> int:
        num_cases = len(self.rows) * (
            1
            + sum(
                self._num_draws(protocol) * len(levels) for protocol, levels in self.levels.items()
            )
        )
        # The first matrix (index 0) has no case under churn.
        return num_cases - int((self.rows == 0).sum()) * len(self.levels.get(Protocol.CHURN, ()))

    def __iter__(self) -> Iterator[Case]:
        """Yield the cases, matrix by matrix: the nominal one, then those of each protocol and
        level.
        """
        # Variance (D,) of the changes over time, which only noise needs.
        variance = self._variance() if self.levels.get(Protocol.NOISE) else np.zeros(0)
        for matrix_index in self.rows.tolist():
            (demand,) = self.traffic.read([matrix_index])
            yield Case(Protocol.OFFLINE, "", 0, matrix_index, demand, self.topology.capacity)
            for protocol, levels in self.levels.items():
                if protocol is Protocol.CHURN and matrix_index == 0:
                    # The first matrix has no previous allocation.
                    continue
                for level in levels:
                    for draw in range(self._num_draws(protocol)):
                        yield self._changed_case(
                            protocol, level, draw, matrix_index, demand, variance
                        )

    def _num_draws(self, protocol: Protocol) -> int:
        """Return the number of random draws of each level of a protocol: 1 without randomness."""
        return self.draws if protocol in (Protocol.FAILURES, Protocol.NOISE) else 1

    def _changed_case(
        self,
        protocol: Protocol,
        level: CaseLevel,
        draw: int,
        matrix_index: int,
        demand: FloatArray,
        variance: FloatArray,
    ) -> Case:
        """Build the case of one matrix, protocol, level and draw.

        Args:
            protocol: kind of change.
            level: strength of the change.
            draw: index of the random draw.
            matrix_index: index of the matrix.
            demand: (D,) Gbit/s of the matrix.
            variance: (D,) variance of the changes over time, (Gbit/s)^2, for noise.
        """
        capacity = self.topology.capacity
        rng = self._rng(protocol, level, draw, matrix_index)
        if protocol is Protocol.CHURN:
            return Case(protocol, level.text, draw, matrix_index, demand, capacity, level.value)
        if protocol is Protocol.FAILURES:
            capacity = self.topology.with_failed_links(
                self._failed_links(level, draw, matrix_index)
            ).capacity
        elif protocol is Protocol.NOISE:
            demand = temporal_noise(demand, variance, level.value, rng)
        elif protocol is Protocol.SPATIAL:
            demand = redistribute(demand, level.value)
        else:
            demand = demand * level.value
        return Case(protocol, level.text, draw, matrix_index, demand, capacity)

    def failures(self) -> Iterator[list[int]]:
        """Yield the indices of the failed links of each case of the protocol FAILURES."""
        for matrix_index in self.rows.tolist():
            for level in self.levels.get(Protocol.FAILURES, ()):
                yield from (
                    self._failed_links(level, draw, matrix_index) for draw in range(self.draws)
                )

    def _failed_links(self, level: CaseLevel, draw: int, matrix_index: int) -> list[int]:
        """Return the indices of the failed links of a case: both directions of randomly drawn
        cables.

        Args:
            level: number or share of the cables that fail.
            draw: index of the random draw.
            matrix_index: index of the matrix.
        """
        num_cables = len(self.topology.cables())
        num_failed = max(1, round(level.value * num_cables)) if level.relative else int(level.value)
        return fail_cables(
            self.topology, num_failed, self._rng(Protocol.FAILURES, level, draw, matrix_index)
        )

    def _rng(
        self, protocol: Protocol, level: CaseLevel, draw: int, matrix_index: int
    ) -> np.random.Generator:
        """Return the random generator of a case, which depends on the seed and these arguments
        alone.

        Args:
            protocol: kind of change.
            level: strength of the change.
            draw: index of the random draw.
            matrix_index: index of the matrix.
        """
        digest = hashlib.sha256(f"{protocol.value}/{level.text}".encode()).digest()
        return np.random.default_rng(
            [self.seed, int.from_bytes(digest[:8], "big"), draw, matrix_index]
        )

    def _variance(self) -> FloatArray:
        """Return the variance (D,), (Gbit/s)^2, of the changes between consecutive matrices, over
        the whole traffic.
        """
        # Variance = mean of squares - square of mean, from sums over the chunks; the last matrix of
        # a chunk precedes the first one of the next chunk.
        last_matrix = None
        sums = np.zeros(self.traffic.num_demands)
        square_sums = np.zeros(self.traffic.num_demands)
        for chunk in self.traffic.chunks():
            changes = np.diff(
                chunk if last_matrix is None else np.vstack([last_matrix, chunk]), axis=0
            )
            last_matrix = chunk[-1:]
            sums = sums + changes.sum(0)
            square_sums = square_sums + (changes**2).sum(0)
        num_changes = max(1, self.traffic.num_matrices - 1)
        return np.maximum(square_sums / num_changes - (sums / num_changes) ** 2, 0.0)


def selection_text(
    num_evaluated: int, instance: Instance, config: StudyOptions, *, is_consecutive: bool
) -> str:
    """Return the description of the evaluated matrices, such as
    ``10 of 50 matrices: the test split, evenly spread``.

    Args:
        num_evaluated: number of evaluated matrices.
        instance: all matrices.
        config: settings of the split and the calibration.
        is_consecutive: whether the evaluated matrices are consecutive; otherwise they are evenly
            spread.
    """
    num_available = instance.traffic.num_matrices
    calibration_text = (
        ""
        if config.calibrate is None
        else (
            f"; demands scaled so that the optimum carries {100 * config.calibrate:g}% of the "
            "median training matrix"
        )
    )
    if num_evaluated == num_available:
        return (
            f"all {num_evaluated:,} matrices" if num_evaluated > 1 else "the one matrix"
        ) + calibration_text
    split_text = "" if config.split == "all" else f"the {config.split} split"
    is_part_of_split = num_evaluated < len(rows_of(instance, config.split))
    spacing = ("consecutive" if is_consecutive else "evenly spread") if is_part_of_split else ""
    return (
        f"{num_evaluated:,} of {num_available:,} matrices: "
        + ", ".join(filter(None, (split_text, spacing)))
        + calibration_text
    )
