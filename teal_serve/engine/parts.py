"""Optional parts of the service, which packages add by entry points of the group ``teal.service``.

``counters`` estimates matrices from interface counters (:class:`CountingPart`); ``next_interval``
allocates for the interval after the newest measured matrix (:class:`NextIntervalPart`). A request
for a part that is not installed gets 422.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from teal.network import PathSet, Topology
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.spec import Registry
from teal_serve.engine.answer import Answer
from teal_serve.engine.errors import ServiceError, invalid_request
from teal_serve.engine.measured import MeasuredMatrices, MeasurementHistory
from teal_serve.engine.requests import CounterReadings

# Names of the entry points.
COUNTERS = "counters"
NEXT_INTERVAL = "next_interval"
PARTS: Registry[Any] = Registry("part of the service", "teal.service")


class CountedMatrix(Protocol):
    """Traffic matrix estimated from the interface counters of an interval, or checked by them."""

    @property
    def rates(self) -> FloatArray:
        """(1, D) matrix to store, Gbit/s."""
        ...

    @property
    def figures(self) -> dict[str, Any]:
        """Fields of :class:`teal_serve.engine.responses.CountedInfo`."""
        ...

    @property
    def alarm(self) -> bool:
        """Whether the counters contradict each other or the matrix, which is then not stored."""
        ...


class CountingPart(Protocol):
    """Estimation of traffic matrices from interface counters, for all networks.

    The class is constructed with the maximum number of queued intervals.
    """

    def interval_of(
        self,
        sent_counters: CounterReadings,
        topology: Topology,
        capacity: FloatArray,
        splits: FloatArray | None,
        matrix: FloatArray | None,
    ) -> Any:
        """Convert the counters of a request to the argument ``interval`` of :meth:`take`.

        For D pairs of nodes, K candidate paths of a pair, and E links.

        Args:
            sent_counters: counters by names of links and nodes.
            topology: topology of the network.
            capacity: (E,) current capacities, Gbit/s.
            splits: (D, K) splits installed during the interval; None for shortest paths (IGP).
            matrix: (1, D) matrix sent with the counters; None to estimate it.
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
        """Estimate the matrix of an interval, or check the sent one.

        Args:
            key: generation of the network.
            topology: topology of the network.
            paths: candidate paths of the network.
            matrices: matrices measured before.
            interval: counters, as converted by :meth:`interval_of`.
            client: client to which the request is charged.
            deadline: time limit, by ``time.perf_counter()``.

        Returns:
            matrix with the figures of its estimate or check.
        """
        ...

    def observe(self, key: str, rates: FloatArray) -> None:
        """Update the estimator by directly measured matrices.

        Args:
            key: generation of the network.
            rates: (B, D) Gbit/s, ascending in time.
        """
        ...

    def forget(self, key: str) -> None:
        """Drop the state of a removed network.

        Args:
            key: generation of the network.
        """
        ...


class NextAllocation(Protocol):
    """Splits for the next interval.

    Attributes:
        splits: (D, K) fraction of each demand on each candidate path, float64.
    """

    splits: Tensor


class NextIntervalPart(MeasurementHistory):
    """Allocations of one network for the interval after its newest measured matrix.

    Args:
        name: name of the network.
        pairs: (D, 2) source and target node index of each demand.
        folder: folder of the measured matrices, and of state learnt from them.
        varied: share of every demand on randomised splits, 0 to 1.

    Attributes:
        latest: newest allocation; None before the first one.
        realised: ratio of the realised to the optimal largest utilisation in the last allocated
            interval; None before.
    """

    latest: NextAllocation | None
    realised: float | None

    def __init__(self, name: str, pairs: Any, folder: Path, varied: float = 0.0) -> None:
        super().__init__(name, pairs, folder)
        self.latest = None
        self.realised = None

    def is_current(self, capacity: FloatArray) -> bool:
        """Return whether the newest allocation uses all matrices and the current capacities.

        Args:
            capacity: (E,) current capacities, Gbit/s.
        """
        raise NotImplementedError

    def allocate(self, problem: Problem) -> Any:
        """Update the forecast by newly measured matrices, and allocate for the next interval.

        Args:
            problem: problem without demand and with current capacities, B = 1.
        """
        raise NotImplementedError

    def answer(
        self, latest: Any, rates: FloatArray, network: Problem, queue_s: float
    ) -> tuple[Answer, dict[str, Any]]:
        """Return the answer with an allocation's figures on a matrix, and further response fields.

        Args:
            latest: result of :meth:`allocate`.
            rates: (1, D) newest matrix, Gbit/s.
            network: problem without demand and with current capacities, B = 1; it may have more
                paths than the allocation.
            queue_s: seconds that the request was queued.

        Returns:
            answer, and further fields of the response, such as ``limit``.
        """
        raise NotImplementedError


def counting_part(max_queued: int) -> CountingPart | None:
    """Return a new instance of the installed part for counters; None without one."""
    part_type = _find_part(COUNTERS)
    return None if part_type is None else part_type(max_queued)


def next_interval_part() -> type[NextIntervalPart] | None:
    """Return the installed class for the next interval; None without one."""
    return _find_part(NEXT_INTERVAL)


def warm_up_parts() -> None:
    """Call the ``warm_up`` function of the installed parts, which loads their kernels."""
    # Without a part or such a function, nothing happens.
    for name in (COUNTERS, NEXT_INTERVAL):
        getattr(_find_part(name), "warm_up", lambda: None)()


def not_installed(name: str) -> ServiceError:
    """Return error 422: a request needs a part of the service that is not installed.

    Args:
        name: name of the part, ``counters`` or ``next_interval``.
    """
    return invalid_request(
        f"{name}: not supported, since no installed package provides this part; install a package "
        f"with the entry point {name} in the group teal.service"
    )


def _find_part(name: str) -> Any:
    """Return the installed part with a name; None if it is missing or cannot be imported."""
    try:
        if name in PARTS:
            return PARTS[name]
    except ImportError:
        pass
    return None
