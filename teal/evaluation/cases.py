"""The cases of an evaluation: unchanged matrices, and matrices under failures, noise, moved or
scaled demand.

The protocols of the field (Teal, section 5; NCFlow, section 5): nothing is retrained, and all cases
have the same paths, among which is one for every demand that the network connects in a case
(:meth:`Cases.failures`). Random draws depend on seed, protocol, level, draw and matrix alone, so
that all schemes get the same cases, whatever other protocols are evaluated.
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
from teal.evaluation.settings import StudyOptions
from teal.network import Topology, TrafficMatrices
from teal.network.disturbances import fail_cables, redistribute, temporal_noise
from teal.runtime.arrays import FloatArray, Int64Array


class Protocol(StrEnum):
    """Kinds of changes to a matrix or network before schemes get it."""

    OFFLINE = "offline"
    ONLINE = "online"  # rows of its own for the cases of OFFLINE, see teal.evaluation.evaluate
    FAILURES = "failures"
    NOISE = "noise"
    SPATIAL = "spatial"
    SCALE = "scale"
    CHURN = "churn"  # the matrix is unchanged, and only a share of the volume may move


@dataclasses.dataclass(frozen=True)
class CaseLevel:
    """How strongly a protocol changes a case.

    Attributes:
        text: as the user wrote it, such as ``5%``.
        value: the number, such as 0.05.
        relative: whether it is a share of a whole, written with a per cent sign.
    """

    text: str
    value: float
    relative: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One matrix that schemes are evaluated on.

    Attributes:
        protocol: what was done to it.
        level: how strongly, as it was written; ``""`` for protocols without levels.
        draw: number of the random draw.
        index: row of the matrix in the traffic.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s.
        max_churn: share of the volume that may move against the optimum of the matrix before; None
            for no limit.
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
        """Identifies the case among those of a network and its traffic."""
        return f"{self.protocol.value}/{self.level}/{self.draw}/{self.index}"


def parse_levels(
    option: str, text: str, *, counted: bool = False, shares: bool = False
) -> tuple[CaseLevel, ...]:
    """Parse the levels of an option: numbers separated by commas.

    Args:
        option: named in messages.
        text: "" for no levels.
        counted: integers, or per cents of a whole: ``1,2,5%``.
        shares: all are per cents, with or without the sign: ``80,60,40,20%``.

    Raises:
        InputError: anything else, a number that is not positive, or one twice.
    """
    levels = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", part)
        expected = (
            "numbers such as 80,60,40,20%"
            if shares
            else f"numbers such as {'1,2,5%' if counted else '0.5,1,2'}"
        )
        if not match or not float(match[1]) > 0 or (match[2] and not (counted or shares)):
            raise InputError(option, "", expected, repr(part))
        relative = shares or bool(match[2])
        value = float(match[1]) / (100 if relative else 1)
        if (relative and value > 1) or (counted and not relative and value != int(value)):
            raise InputError(option, "", expected, repr(part))
        levels.append(CaseLevel(f"{match[1]}%" if relative else match[1], value, relative))
    if len({level.text for level in levels}) < len(levels):
        raise InputError(option, "", "each level once", repr(text))
    return tuple(levels)


@dataclasses.dataclass(frozen=True, eq=False)
class Cases:
    """The cases of one network, matrix by matrix; for each matrix the unchanged case comes first.

    Attributes:
        topology: the network, with the capacities that are in force before any failure of a case.
        traffic: the matrices.
        rows: numbers of the matrices.
        levels: levels of each protocol that has levels (offline and online have none).
        draws: random draws of each level, for failures and noise.
        seed: seed of the draws.
    """

    topology: Topology
    traffic: TrafficMatrices
    rows: Int64Array
    levels: dict[Protocol, tuple[CaseLevel, ...]] = dataclasses.field(default_factory=dict)
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError for more failures than cables, or for noise if there is only one
        matrix.
        """
        if self.levels.get(Protocol.NOISE) and self.traffic.num_matrices < 2:
            raise InputError(
                "--noise",
                "traffic",
                "at least two matrices, whose changes give its variance",
                "one",
            )
        for level in self.levels.get(Protocol.FAILURES, ()):
            cables = len(self.topology.cables())
            if not level.relative and level.value > cables:
                expected = f"no more than the {cables} cables of {self.topology.name}"
                raise InputError("--failures", "", expected, level.text)

    def __len__(self) -> int:
        cases = len(self.rows) * (
            1 + sum(self._draws(kind) * len(levels) for kind, levels in self.levels.items())
        )
        return cases - int((self.rows == 0).sum()) * len(self.levels.get(Protocol.CHURN, ()))

    def __iter__(self) -> Iterator[Case]:
        variance = self._variance() if self.levels.get(Protocol.NOISE) else np.zeros(0)
        for row in self.rows.tolist():
            (demand,) = self.traffic.read([row])
            yield Case(Protocol.OFFLINE, "", 0, row, demand, self.topology.capacity)
            for protocol, levels in self.levels.items():
                if protocol is Protocol.CHURN and row == 0:
                    continue  # nothing is in force before the first matrix
                for level in levels:
                    for draw in range(self._draws(protocol)):
                        yield self._case(protocol, level, draw, row, demand, variance)

    def _draws(self, protocol: Protocol) -> int:
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
        """The links that are down in each case with failures, those of capacity 0 aside."""
        for row in self.rows.tolist():
            for level in self.levels.get(Protocol.FAILURES, ()):
                yield from (self._failed(level, draw, row) for draw in range(self.draws))

    def _failed(self, level: CaseLevel, draw: int, row: int) -> list[int]:
        cables = len(self.topology.cables())
        count = max(1, round(level.value * cables)) if level.relative else int(level.value)
        return fail_cables(self.topology, count, self._rng(Protocol.FAILURES, level, draw, row))

    def _rng(
        self, protocol: Protocol, level: CaseLevel, draw: int, row: int
    ) -> np.random.Generator:
        digest = hashlib.sha256(f"{protocol.value}/{level.text}".encode()).digest()
        return np.random.default_rng([self.seed, int.from_bytes(digest[:8], "big"), draw, row])

    def _variance(self) -> FloatArray:
        """(D,) variance of the changes between consecutive matrices, over the whole traffic,
        (Gbit/s)^2.
        """
        last_row = None
        total = np.zeros(self.traffic.num_demands)
        square = np.zeros(self.traffic.num_demands)
        for chunk in self.traffic.chunks():
            change = np.diff(chunk if last_row is None else np.vstack([last_row, chunk]), axis=0)
            last_row = chunk[-1:]
            total = total + change.sum(0)
            square = square + (change**2).sum(0)
        count = max(1, self.traffic.num_matrices - 1)
        return np.maximum(square / count - (total / count) ** 2, 0.0)


def selection_text(
    count: int, instance: Instance, config: StudyOptions, *, is_consecutive: bool
) -> str:
    """Which matrices were evaluated, in words:
    ``10 of 50 matrices: the test split, evenly spread``.
    """
    available = instance.traffic.num_matrices
    calibrated = (
        ""
        if config.calibrate is None
        else (
            f"; demands scaled so that the optimum carries {100 * config.calibrate:g}% of the "
            "median training matrix"
        )
    )
    if count == available:
        return (f"all {count:,} matrices" if count > 1 else "the one matrix") + calibrated
    split = "" if config.split == "all" else f"the {config.split} split"
    is_part = count < len(rows_of(instance, config.split))
    how = ("consecutive" if is_consecutive else "evenly spread") if is_part else ""
    return (
        f"{count:,} of {available:,} matrices: "
        + ", ".join(filter(None, (split, how)))
        + calibrated
    )
