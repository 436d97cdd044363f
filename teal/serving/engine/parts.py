"""Parts of the service that packages bring, by entry points in the group ``teal.service``.

``counters`` makes matrices from interface counters (:class:`CountingPart`), ``next_interval``
allocates for the interval after the newest measured matrix (:class:`NextIntervalPart`).  A request
for a part that is not installed gets 422.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from teal.network import PathSet, Topology
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.serving.engine.answer import Answer
from teal.serving.engine.errors import ServiceError, wrong
from teal.serving.engine.measured import Measured, MeasuredMatrices
from teal.serving.engine.requests import CounterReadings
from teal.spec import Registry

COUNTERS, NEXT_INTERVAL = "counters", "next_interval"  # names of the entry points
PARTS: Registry[Any] = Registry("part of the service", "teal.service")


class CountedMatrix(Protocol):
    """The matrix of an interval's counters."""

    @property
    def rates(self) -> FloatArray:
        """(1, D) Gbit/s, the matrix to keep."""
        ...

    @property
    def figures(self) -> dict[str, Any]:
        """:class:`teal.serving.engine.responses.CountedInfo`."""
        ...

    @property
    def alarm(self) -> bool:
        """Whether the matrix must not be acted on."""
        ...


class CountingPart(Protocol):
    """Matrices from counters, of all networks.  It is made with the number of intervals that may
    wait.
    """

    def interval_of(
        self,
        sent_counters: CounterReadings,
        topology: Topology,
        capacity: FloatArray,
        splits: FloatArray | None,
        matrix: FloatArray | None,
    ) -> Any:
        """The counters of a request, as :meth:`take` takes them.

        Args:
            sent_counters: counters of the request, by the names of links and nodes.
            topology: the network.
            capacity: (E,) in force.
            splits: (D, K) that were in force; None for the IGP.
            matrix: (1, D) that was sent beside the counters; None to estimate it.
        """
        ...

    async def take(
        self,
        key: str,
        topology: Topology,
        paths: PathSet,
        matrices: MeasuredMatrices,
        interval: Any,
        client: str,
        deadline: float,
    ) -> CountedMatrix:
        """The matrix of an interval.

        Args:
            key: key of the registration of the network.
            topology: the network.
            paths: its candidate paths.
            matrices: matrices that were measured before.
            interval: the counters, from :meth:`interval_of`.
            client: whom they count for.
            deadline: by time.perf_counter().
        """
        ...

    def observe(self, key: str, rates: FloatArray) -> None:
        """Learn matrices (B, D) that were measured themselves."""
        ...

    def forget(self, key: str) -> None:
        """Drop what is known of a network that is gone."""
        ...


class NextAllocation(Protocol):
    """Splits for an interval.

    Attributes:
        splits: (D, K) float64.
    """

    splits: Tensor


class NextIntervalPart(Measured):
    """Allocations of one network for the interval after its newest measured matrix.

    Attributes:
        latest: the latest allocation; None before the first one.
        realised: realised over optimal value of the last interval that was allocated for; None
            before.
    """

    latest: NextAllocation | None
    realised: float | None

    def __init__(self, name: str, pairs: Any, folder: Path, varied: float = 0.0) -> None:
        super().__init__(name, pairs, folder)
        self.latest, self.realised = None, None

    def is_current(self, capacity: FloatArray) -> bool:
        """Whether the latest allocation knows all matrices, and is for these capacities (E,)."""
        raise NotImplementedError

    def allocate(self, problem: Problem) -> Any:
        """Take in what was measured since the last call, and allocate for the next interval."""
        raise NotImplementedError

    def answer(
        self, latest: Any, rates: FloatArray, network: Problem, queue_s: float
    ) -> tuple[Answer, dict[str, Any]]:
        """An allocation, with figures by a matrix; and the further fields of an answer.

        Args:
            latest: result of :meth:`allocate`.
            rates: (1, D) Gbit/s of the newest matrix.
            network: network with the capacities in force; paths may have been added to those of the
                allocation.
            queue_s: seconds that the request waited.
        """
        raise NotImplementedError


def counting_part(most_waiting: int) -> CountingPart | None:
    """The part for counters; None where it is not installed."""
    kind = _found(COUNTERS)
    return None if kind is None else kind(most_waiting)


def next_interval_part() -> type[NextIntervalPart] | None:
    """The class of the part for the next interval; None where it is not installed."""
    return _found(NEXT_INTERVAL)


def warm_up_parts() -> None:
    """Call the kernels of the parts that are installed and have a function ``warm_up`` for them."""
    for name in (COUNTERS, NEXT_INTERVAL):
        getattr(_found(name), "warm_up", lambda: None)()


def not_installed(name: str) -> ServiceError:
    """The error for a request that needs a part that is not installed."""
    return wrong(
        f"{name}: this service has no part for it: install a package that announces one in "
        "teal.service"
    )


def _found(name: str) -> Any:
    try:
        if name in PARTS:
            return PARTS[name]
    except ImportError:
        pass
    return None
