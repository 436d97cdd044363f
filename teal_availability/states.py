"""States of a network, sets of components that are down at once, by descending probability.

Components c fail independently, with unavailability q[c], so that a set F of them is down in the
share of the time

    p(F) = product of (1 - q[c]) over all c, times the product of q[c] / (1 - q[c]) over c in F.

With the components sorted by their odds, every set has two sets that follow from it and are no more
probable: its last member is replaced by the next component, or the next component joins.  A heap of
the sets that come next gives all of them in order (Lawler, Management Science 1972).
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterator

import numpy as np

from teal.runtime.arrays import FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class States:
    """S states of a network; the first is that all components work.

    Attributes:
        probability: (S,) share of the time in which exactly these components are down.
        down: components of each state.
        rest: share of the time in which the network is in a state that is not listed.
    """

    probability: FloatArray
    down: tuple[tuple[int, ...], ...]
    rest: float

    def __len__(self) -> int:
        """S."""
        return len(self.down)


def all_states(
    unavailability: FloatArray, most_down: int = 0
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Probability and components of every state, by descending probability.

    Args:
        unavailability: (n,) of the components, at most 0.5.
        most_down: components that are down at once, at most; 0 for no limit.
    """
    odds = unavailability / (1 - unavailability)
    order = np.argsort(-odds, kind="stable")
    sorted_odds = odds[order].tolist()
    count = len(odds)
    limit = most_down or count
    all_up = float(np.prod(1 - unavailability))
    yield all_up, ()
    heap: list[tuple[float, tuple[int, ...]]] = []
    if count:
        heap.append((-all_up * sorted_odds[0], (0,)))
    while heap:
        negative, members = heapq.heappop(heap)
        yield -negative, tuple(sorted(order[list(members)].tolist()))
        last = members[-1]
        if last + 1 < count:
            replaced = negative / sorted_odds[last] * sorted_odds[last + 1]
            heapq.heappush(heap, (replaced, (*members[:-1], last + 1)))
            if len(members) < limit:
                joined = negative * sorted_odds[last + 1]
                heapq.heappush(heap, (joined, (*members, last + 1)))


def most_probable(
    unavailability: FloatArray,
    rest: float = 1e-6,
    most_down: int = 0,
    most_states: int = 1_000_000,
) -> States:
    """States until those that are left take less than ``rest`` of the time.

    Args:
        unavailability: (n,) of the components, above 0 and at most 0.5.
        rest: share of the time that may be left.
        most_down: components that are down at once, at most; 0 for no limit.
        most_states: number of states, at most.
    """
    probability: list[float] = []
    down: list[tuple[int, ...]] = []
    covered = 0.0
    for share, members in all_states(unavailability, most_down):
        probability.append(share)
        down.append(members)
        covered += share
        if 1 - covered <= rest or len(down) >= most_states:
            break
    return States(np.array(probability), tuple(down), max(0.0, 1 - math.fsum(probability)))
