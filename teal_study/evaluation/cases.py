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
        relative = shares or bool(match[2])
        value = float(match[1]) / (100 if relative else 1)
        if (relative and value > 1) or (counted and not relative and value != int(value)):
            raise InputError(option, "", expected, repr(level_text))
        levels.append(CaseLevel(f"{match[1]}%" if relative else match[1], value, relative))
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
            1 + sum(self._draws(protocol) * len(levels) for protocol, levels in self.levels.items())
        )
        return num_cases - int((self.rows == 0).sum()) * len(self.levels.get(Protocol.CHURN, ()))

    def __iter__(self) -> Iterator[Case]:
        """Yield the cases, matrix by matrix: the nominal one, then those of each protocol and
        level.
        """
        # Variance (D,) of the changes over time, which only noise needs.
        variance = self._variance() if self.levels.get(Protocol.NOISE) else np.zeros(0)
        for row in self.rows.tolist():
            (demand,) = self.traffic.read([row])
            yield Case(Protocol.OFFLINE, "", 0, row, demand, self.topology.capacity)
            for protocol, levels in self.levels.items():
                if protocol is Protocol.CHURN and row == 0:
                    # The first matrix has no previous allocation.
                    continue
                for level in levels:
                    for draw in range(self._draws(protocol)):
                        yield self._case(protocol, level, draw, row, demand, variance)

    def _draws(self, protocol: Protocol) -> int:
        """Return the number of random draws of each level of a protocol: 1 without randomness."""
        return self.draws if protocol in (Protocol.FAILURES, Protocol.NOISE) else 1

    def _case(
        self,
        protocol: Protocol,
        level: CaseLevel,
        draw: int,
        row: int,
        demand: FloatArray,
        variance: FloatArray,
    ) -> Case:
        """Build the case of one matrix, protocol, level and draw.

        Args:
            protocol: kind of change.
            level: strength of the change.
            draw: index of the random draw.
            row: index of the matrix.
            demand: (D,) Gbit/s of the matrix.
            variance: (D,) variance of the changes over time, (Gbit/s)^2, for noise.
        """
        capacity = self.topology.capacity
        rng = self._rng(protocol, level, draw, row)
        if protocol is Protocol.CHURN:
            return Case(protocol, level.text, draw, row, demand, capacity, level.value)
        if protocol is Protocol.FAILURES:
            capacity = self.topology.with_failed_links(self._failed(level, draw, row)).capacity
        elif protocol is Protocol.NOISE:
            demand = temporal_noise(demand, variance, level.value, rng)
        elif protocol is Protocol.SPATIAL:
            demand = redistribute(demand, level.value)
        else:
            demand = demand * level.value
        return Case(protocol, level.text, draw, row, demand, capacity)

    def failures(self) -> Iterator[list[int]]:
        """Yield the indices of the failed links of each case of the protocol FAILURES."""
        for row in self.rows.tolist():
            for level in self.levels.get(Protocol.FAILURES, ()):
                yield from (self._failed(level, draw, row) for draw in range(self.draws))

    def _failed(self, level: CaseLevel, draw: int, row: int) -> list[int]:
        """Return the indices of the failed links of a case: both directions of randomly drawn
        cables.

        Args:
            level: number or share of the cables that fail.
            draw: index of the random draw.
            row: index of the matrix.
        """
        num_cables = len(self.topology.cables())
        num_failed = max(1, round(level.value * num_cables)) if level.relative else int(level.value)
        return fail_cables(
            self.topology, num_failed, self._rng(Protocol.FAILURES, level, draw, row)
        )

    def _rng(
        self, protocol: Protocol, level: CaseLevel, draw: int, row: int
    ) -> np.random.Generator:
        """Return the random generator of a case, which depends on the seed and these arguments
        alone.

        Args:
            protocol: kind of change.
            level: strength of the change.
            draw: index of the random draw.
            row: index of the matrix.
        """
        digest = hashlib.sha256(f"{protocol.value}/{level.text}".encode()).digest()
        return np.random.default_rng([self.seed, int.from_bytes(digest[:8], "big"), draw, row])

    def _variance(self) -> FloatArray:
        """Return the variance (D,), (Gbit/s)^2, of the changes between consecutive matrices, over
        the whole traffic.
        """
        # Sums of the changes and of their squares, chunk by chunk; the last matrix of a chunk
        # precedes the first one of the next chunk.
        last_row = None
        sums = np.zeros(self.traffic.num_demands)
        square_sums = np.zeros(self.traffic.num_demands)
        for chunk in self.traffic.chunks():
            change = np.diff(chunk if last_row is None else np.vstack([last_row, chunk]), axis=0)
            last_row = chunk[-1:]
            sums = sums + change.sum(0)
            square_sums = square_sums + (change**2).sum(0)
        num_changes = max(1, self.traffic.num_matrices - 1)
        return np.maximum(square_sums / num_changes - (sums / num_changes) ** 2, 0.0)


def selection_text(
    count: int, instance: Instance, config: StudyOptions, *, is_consecutive: bool
) -> str:
    """Return the description of the evaluated matrices, such as
    ``10 of 50 matrices: the test split, evenly spread``.

    Args:
        count: number of evaluated matrices.
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
    if count == num_available:
        return (f"all {count:,} matrices" if count > 1 else "the one matrix") + calibration_text
    split_text = "" if config.split == "all" else f"the {config.split} split"
    is_part = count < len(rows_of(instance, config.split))
    spacing = ("consecutive" if is_consecutive else "evenly spread") if is_part else ""
    return (
        f"{count:,} of {num_available:,} matrices: "
        + ", ".join(filter(None, (split_text, spacing)))
        + calibration_text
    )
