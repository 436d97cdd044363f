"""The optimum that a sentence of the checker speaks of, by a linear program over the paths
themselves.

No line of this file knows a bound, a price or a multiplier of a proof: it reads network, matrix,
groups and paths.
"""

from __future__ import annotations

import csv
import math
from fractions import Fraction
from pathlib import Path
from urllib.parse import quote

import networkx as nx
import numpy as np
from scipy.optimize import linprog

_TOLERANCE = 1e-6  # of the linear programs


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


class Truth:
    """Network, matrix, and the paths of a proof.

    Args:
        network, matrix, proof, groups: files that the checker accepted.
    """

    def __init__(
        self, network: Path, matrix: Path, proof: Path, groups: Path | None = None
    ) -> None:
        links, demands = _rows(network), _rows(matrix)
        self.capacity = np.array([float(row["capacity"]) for row in links])
        self.cost = np.array([float(row.get("cost") or 0) for row in links])
        self.rate = np.array([float(row["rate"]) for row in demands])
        self.weight = np.array([float(row.get("weight") or 1) for row in demands])
        self.of_class = [quote(row.get("class") or "", safe="") for row in demands]
        head, body = proof.read_bytes().decode().split("\nflows\n", 1)
        lines = head.split("\n")
        self.kept = [
            {
                words[1]
                for words in map(str.split, part.split("\n"))
                if words and words[0] == "multiplier"
            }
            for part in head.split("\nprogram ")[1:]
        ]
        of_file: list[list[tuple[int, tuple[int, ...]]]] = []
        for line in body.split("\n")[: len(demands)]:
            words = [word.split(":") for word in line.split(" ")[1:] if word[:1] != "@"]
            of_file.append(
                [(int(amount), tuple(map(int, along.split(",")))) for amount, along in words]
            )
        self.exact = [Fraction(sum(amount for amount, _ in of), 2**60) for of in of_file]
        if lines[3] == "paths all":
            graph = nx.MultiDiGraph()
            for number, row in enumerate(links):
                graph.add_edge(row["source"], row["target"], number)
            every = [self._simple(graph, row["source"], row["target"]) for row in demands]
        else:
            every = [[along for _, along in of] for of in of_file]
        is_open = self.capacity > 0
        found = [
            (d, along) for d, of in enumerate(every) for along in of if is_open[list(along)].all()
        ]
        self.demand_of, self.along = (
            np.array([d for d, _ in found], dtype=int),
            [along for _, along in found],
        )
        self.use, self.served = (
            np.zeros((len(links), len(found))),
            np.zeros((len(demands), len(found))),
        )
        for column, (d, along) in enumerate(found):
            np.add.at(self.use[:, column], list(along), 1)
            self.served[d, column] = 1
        self.routable = self.served.any(1)
        hit: dict[str, set[int]] = {}
        for row in _rows(groups) if groups else []:
            hit.setdefault(row["group"], set()).add(int(row["link"]))
        self.groups = [set[int](), *hit.values()]

    @staticmethod
    def _simple(graph: nx.MultiDiGraph, source: str, target: str) -> list[tuple[int, ...]]:
        if source not in graph or target not in graph or source == target:
            return []
        return [
            tuple(key for _, _, key in path)
            for path in nx.all_simple_edge_paths(graph, source, target)
        ]

    def holds(self, sentence: str, number: int) -> bool:
        """Whether the optimum lies where the sentence about a program says, which is one of
        several."""
        if ": the cost is from " in sentence:
            return self._cost_holds(sentence)
        subject, _, rest = sentence.partition(": the optimum is from ")
        low, high = (float(text) for text in rest.partition(",")[0].split(" to "))
        kind, _, name = subject.rpartition("paths: ")[2].partition(" while ")[0].partition(" ")
        room = _TOLERANCE * max(1.0, abs(high))
        if kind == "level":
            return low == 1 and self._needs(float(name), high + room) >= 1 - _TOLERANCE
        optimum = self._optimum(kind, name, self.kept[number])
        return low - room <= optimum <= high + room

    def _cost_holds(self, sentence: str) -> bool:
        """Whether all demand costs no less than is said, and the share that is said no more."""
        subject, _, rest = sentence.partition(": the cost is from ")
        low, high = (float(text.split(" of ")[0]) for text in rest.split(" to "))
        share = float(subject.rpartition(" ")[2])
        room = _TOLERANCE * max(1.0, abs(high))
        return low - room <= self._cost_of(1.0) and self._cost_of(share) <= high + room

    def _cost_of(self, share: float) -> float:
        one = self.routable & (self.rate > 0)
        cost = self.cost @ self.use
        if not len(cost):
            return 0.0
        above, most = (
            np.vstack([self.use, -self.served[one]]),
            [self.capacity, -share * self.rate[one]],
        )
        solved = linprog(cost, above, np.concatenate(most), bounds=(0, None), method="highs")
        return math.inf if solved.status == 2 else float(solved.fun)

    def _solve(self, cost: np.ndarray, above: list[np.ndarray], most: list[np.ndarray]) -> float:
        """The least cost; variables are at least 0."""
        if not len(cost):
            return 0.0
        solved = linprog(
            cost, np.vstack(above), np.concatenate(most), bounds=(0, None), method="highs"
        )
        assert solved.fun is not None, solved.message
        return float(solved.fun)

    def _optimum(self, kind: str, name: str, kept: set[str]) -> float:
        limits, room = [self.use, self.served], [self.capacity, self.rate]
        if kind == "value":
            profit = self.weight[self.demand_of] - self.cost @ self.use
            return -self._solve(-profit, limits, room)
        if kind == "class":
            own = np.array([one == name for one in self.of_class])
            for other in kept:
                rows = np.array([one == other for one in self.of_class])
                limits.append(-self.served[rows].sum(0, keepdims=True))
                carried = float(
                    sum(x for x, is_kept in zip(self.exact, rows, strict=True) if is_kept)
                )
                room.append(np.array([-carried * (1 - 1e-9)]))
            return -self._solve(-own[self.demand_of].astype(float), limits, room)
        one = self.routable & (self.rate > 0)
        if kind == "utilisation":
            above = [
                np.hstack([self.use, -self.capacity[:, None]]),
                np.hstack([-self.served[one], np.zeros((one.sum(), 1))]),
            ]
            cost = np.append(np.zeros(self.use.shape[1]), 1.0)
            return self._solve(cost, above, [np.zeros(len(self.capacity)), -self.rate[one]])
        if kind == "concurrent":
            above = [np.hstack([part, np.zeros((len(part), 1))]) for part in limits]
            above += [
                np.hstack([-self.served[one], self.rate[one, None]]),
                np.eye(self.use.shape[1] + 1)[-1:],
            ]
            cost = np.append(np.zeros(self.use.shape[1]), -1.0)
            return -self._solve(cost, above, [*room, np.zeros(one.sum()), np.ones(1)])
        assert kind == "promise", kind
        demands, paths = self.served.shape
        above = [
            np.hstack([self.use, np.zeros((len(self.capacity), demands))]),
            np.hstack([np.zeros((demands, paths)), np.eye(demands)]),
        ]
        most = [self.capacity, self.rate]
        for group in self.groups:
            survives = np.array([not group & set(along) for along in self.along], dtype=bool)
            above.append(np.hstack([-self.served * survives, np.eye(demands)]))
            most.append(np.zeros(demands))
        return -self._solve(np.concatenate([np.zeros(paths), -self.weight]), above, most)

    def _needs(self, level: float, theta: float) -> float:
        """The factor on all capacities with which the demands of a level grow by ``theta``, the
        others keeping flow."""
        exact = [Fraction(level) * Fraction(w) for w in self.weight.tolist()]
        grows = np.array([x >= least for x, least in zip(self.exact, exact, strict=True)])
        kept = np.array([float(x) for x in self.exact])
        wanted = np.where(grows, np.minimum(theta * level * self.weight, self.rate), kept)[
            self.routable
        ]
        above = [
            np.hstack([self.use, -self.capacity[:, None]]),
            np.hstack([-self.served[self.routable], np.zeros((len(wanted), 1))]),
        ]
        cost = np.append(np.zeros(self.use.shape[1]), 1.0)
        return (
            self._solve(cost, above, [np.zeros(len(self.capacity)), -wanted])
            if len(wanted)
            else math.inf
        )
