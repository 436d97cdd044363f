"""Network states (sets of components that are down), enumerated by descending probability.

Components c fail independently, with unavailability q[c], so that exactly a set F of them is down
with probability

    p(F) = product of (1 - q[c]) over all c, times the product of q[c] / (1 - q[c]) over c in F.

With components sorted by their odds, every set has two successors that are no more probable: its
last member is replaced by the next component, or the next component is added. A heap of successors
yields all sets in order (Lawler, Management Science 1972). Entry point:
:func:`most_probable_states`.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterator

import numpy as np

from teal.deprecated import with_old_attributes, with_old_keywords
from teal.runtime.arrays import FloatArray


@with_old_attributes
@dataclasses.dataclass(frozen=True, eq=False)
class States:
    """The S most probable states of a network; in the first one all components work.

    Attributes:
        probability: (S,) probability of each state, the share of the time.
        down: indices of the components that are down in each state; all others work.
        unlisted_probability: total probability of the states that are not listed.
    """

    probability: FloatArray
    down: tuple[tuple[int, ...], ...]
    unlisted_probability: float

    def __len__(self) -> int:
        """Return the number of listed states."""
        return len(self.down)


def all_states(
    unavailability: FloatArray, max_failed_components: int = 0
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield the probability and the failed components of every state, by descending probability.

    Args:
        unavailability: (n,) unavailability of each component, at most 0.5.
        max_failed_components: largest number of components down at once; 0 for no limit.
    """
    odds = unavailability / (1 - unavailability)
    # Rank the components by descending odds q / (1 - q).
    component_of_rank = np.argsort(-odds, kind="stable")
    sorted_odds = odds[component_of_rank].tolist()
    num_components = len(odds)
    max_failed = max_failed_components or num_components
    all_up_probability = float(np.prod(1 - unavailability))
    yield all_up_probability, ()
    # Heap of (minus probability, ascending ranks of the failed components): the most probable state
    # first.
    heap: list[tuple[float, tuple[int, ...]]] = []
    if num_components:
        heap.append((-all_up_probability * sorted_odds[0], (0,)))
    while heap:
        negative_probability, failed_ranks = heapq.heappop(heap)
        yield -negative_probability, tuple(sorted(component_of_rank[list(failed_ranks)].tolist()))
        last_rank = failed_ranks[-1]
        # Push both successors: the next component replaces the failed one of the last rank, or
        # fails too.
        if last_rank + 1 < num_components:
            minus_replaced_probability = (
                negative_probability / sorted_odds[last_rank] * sorted_odds[last_rank + 1]
            )
            heapq.heappush(heap, (minus_replaced_probability, (*failed_ranks[:-1], last_rank + 1)))
            if len(failed_ranks) < max_failed:
                minus_extended_probability = negative_probability * sorted_odds[last_rank + 1]
                heapq.heappush(heap, (minus_extended_probability, (*failed_ranks, last_rank + 1)))


@with_old_keywords
def most_probable_states(
    unavailability: FloatArray,
    max_unlisted_probability: float = 1e-6,
    max_failed_components: int = 0,
    max_states: int = 1_000_000,
) -> States:
    """Return the most probable states of a network.

    The list ends when the unlisted states have a total probability of at most
    ``max_unlisted_probability``, or after ``max_states`` states.

    Args:
        unavailability: (n,) unavailability of each component, above 0 and at most 0.5.
        max_unlisted_probability: largest total probability of the unlisted states.
        max_failed_components: largest number of components down at once; 0 for no limit.
        max_states: largest number of states.
    """
    probability: list[float] = []
    down: list[tuple[int, ...]] = []
    listed_probability = 0.0
    for state_probability, failed_components in all_states(unavailability, max_failed_components):
        probability.append(state_probability)
        down.append(failed_components)
        listed_probability += state_probability
        if 1 - listed_probability <= max_unlisted_probability or len(down) >= max_states:
            break
    return States(np.array(probability), tuple(down), max(0.0, 1 - math.fsum(probability)))
