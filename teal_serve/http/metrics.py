"""Prometheus metrics of the service: request times, allocation quality, load, measured traffic."""

from __future__ import annotations

import contextlib
import platform
from importlib.metadata import version
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client import Counter as PrometheusCounter

# Omit the *_created series.
disable_created_metrics()


class Metrics:
    """Prometheus metrics of one application.

    The registry is separate, since several applications may run in one process.

    Attributes:
        registry: registry of all series, in the order of their creation.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # process_*: CPU time, memory, open files, start time.
        ProcessCollector(registry=self.registry)
        build = Info("teal_build", "Versions that run", registry=self.registry)
        build.info({"version": version("teal-te"), "python": platform.python_version()})
        self._add_times()
        self._add_allocation_quality()
        self._add_network_gauges()
        self._add_load()

    def _add_times(self) -> None:
        """Add the series of requests: counts and times, in seconds, and batch sizes."""
        shared: dict[str, Any] = {"registry": self.registry}
        time_buckets = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
        self.requests = PrometheusCounter(
            "teal_requests", "Responses by route and status", ["route", "status"], **shared
        )
        self.latency = Histogram(
            "teal_request_seconds", "Response time", ["route"], buckets=time_buckets, **shared
        )
        self.queue = Histogram(
            "teal_queue_seconds", "Queue time of allocations", buckets=time_buckets, **shared
        )
        self.solve = Histogram(
            "teal_solve_seconds", "Solver time of allocations", buckets=time_buckets, **shared
        )
        self.batch = Histogram(
            "teal_batch_matrices", "Matrices solved together", buckets=(1, 2, 4, 8, 16), **shared
        )

    def _add_allocation_quality(self) -> None:
        """Add the series of the certified gap and the satisfied demand of allocations."""
        shared: dict[str, Any] = {"registry": self.registry}
        gap_buckets = (1e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 1)
        self.gap = Histogram(
            "teal_gap",
            "Certified gap of allocations, the largest of a request",
            buckets=gap_buckets,
            **shared,
        )
        self.satisfied = Gauge(
            "teal_satisfied_demand",
            "Satisfied fraction of the demand, last allocation",
            ["network"],
            **shared,
        )

    def _add_network_gauges(self) -> None:
        """Add the series of measured traffic and of the allocation for the next interval."""
        shared: dict[str, Any] = {"registry": self.registry}
        self.measured_count = Gauge(
            "teal_measured_matrices", "Stored measured matrices", ["network"], **shared
        )
        self.counter_alarm = Gauge(
            "teal_counter_alarm",
            "1 if the last counters contradict each other or the matrix",
            ["network"],
            **shared,
        )
        # Ratio of realised to optimal largest link utilisation: its upper limit and last value.
        self.next_limit = Gauge(
            "teal_next_limit",
            "Limit of realised over optimal largest utilisation, next interval",
            ["network"],
            **shared,
        )
        self.next_realised = Gauge(
            "teal_next_realised",
            "Realised over optimal largest utilisation, last interval",
            ["network"],
            **shared,
        )

    def _add_load(self) -> None:
        """Add the series of the numbers of networks with warnings, queued and open requests."""
        shared: dict[str, Any] = {"registry": self.registry}
        self.warnings = Gauge(
            "teal_networks_with_warnings", "Networks whose link changes are not stored", **shared
        )
        self.queued = Gauge(
            "teal_queued_requests", "Queued allocation requests", ["network"], **shared
        )
        self.open = Gauge("teal_open_requests", "Requests in progress", **shared)

    def set_queue_lengths(self, num_requests: dict[str, int]) -> None:
        """Set the number of queued requests, by network."""
        # Drop the series of networks that are no longer registered.
        self.queued.clear()
        for network, num_queued in num_requests.items():
            self.queued.labels(network).set(num_queued)

    def measured(self, network: str, info: dict[str, Any]) -> None:
        """Set the number of stored matrices and the counter alarm of a network.

        Args:
            network: name of the network.
            info: fields of ``responses.MeasuredInfo``.
        """
        self.measured_count.labels(network).set(info["matrices"])
        if info.get("counted"):
            self.counter_alarm.labels(network).set(int(info["counted"]["alarm"]))

    def forget(self, network: str) -> None:
        """Remove all series that are labelled with the name of a network."""
        for gauge in (
            self.satisfied,
            self.measured_count,
            self.counter_alarm,
            self.next_limit,
            self.next_realised,
        ):
            with contextlib.suppress(KeyError):
                gauge.remove(network)

    def record_allocation(self, network: str, summary: dict[str, Any]) -> None:
        """Record times, gap and satisfied demand of an answered allocation request.

        Args:
            network: name of the network.
            summary: figures of the answer, fields of ``responses.Answered``.
        """
        self.queue.observe(summary["queue_ms"] / 1e3)
        self.solve.observe(summary["solve_ms"] / 1e3)
        self.batch.observe(summary["batch"])
        # Figures that this allocation does not have are omitted.
        if summary["gap"] is not None:
            self.gap.observe(summary["gap"])
        if summary.get("limit") is not None:
            self.next_limit.labels(network).set(summary["limit"])
        if summary.get("realised") is not None:
            self.next_realised.labels(network).set(summary["realised"])
        if summary["satisfied_demand"] is not None:
            self.satisfied.labels(network).set(summary["satisfied_demand"])
