"""Prometheus metrics of the service."""

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
    """Metrics of one application, in a registry of their own, since several applications may share
    a process.

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
        """Add counts and times of requests, and sizes of batches."""
        shared: dict[str, Any] = {"registry": self.registry}
        time_buckets = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
        self.requests = PrometheusCounter(
            "teal_requests", "Answers by route and status", ["route", "status"], **shared
        )
        self.latency = Histogram(
            "teal_request_seconds", "Time to answer", ["route"], buckets=time_buckets, **shared
        )
        self.queue = Histogram(
            "teal_queue_seconds", "Time that allocations waited", buckets=time_buckets, **shared
        )
        self.solve = Histogram(
            "teal_solve_seconds", "Time of the engine", buckets=time_buckets, **shared
        )
        self.batch = Histogram(
            "teal_batch_matrices", "Matrices solved together", buckets=(1, 2, 4, 8, 16), **shared
        )

    def _add_allocation_quality(self) -> None:
        """Add the certified gap and the satisfied demand of allocations."""
        shared: dict[str, Any] = {"registry": self.registry}
        gap_buckets = (1e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 1)
        self.gap = Histogram(
            "teal_gap",
            "Certified gap of answers, the widest of a request",
            buckets=gap_buckets,
            **shared,
        )
        self.satisfied = Gauge(
            "teal_satisfied_demand", "Of the last answer, by network", ["network"], **shared
        )

    def _add_network_gauges(self) -> None:
        """Add the measured traffic of each network, and the allocation for its next interval."""
        shared: dict[str, Any] = {"registry": self.registry}
        self.measured_count = Gauge(
            "teal_measured_matrices", "Measured matrices that are kept", ["network"], **shared
        )
        self.counter_alarm = Gauge(
            "teal_counter_alarm",
            "1 if the last counters contradict each other or the matrix",
            ["network"],
            **shared,
        )
        self.next_limit = Gauge(
            "teal_next_limit",
            "Limit of realised over optimal utilisation, next interval",
            ["network"],
            **shared,
        )
        self.next_realised = Gauge(
            "teal_next_realised",
            "Realised over optimal utilisation, last interval",
            ["network"],
            **shared,
        )

    def _add_load(self) -> None:
        """Add warnings, queued and open requests."""
        shared: dict[str, Any] = {"registry": self.registry}
        self.warnings = Gauge(
            "teal_networks_with_warnings", "Networks whose link changes are not stored", **shared
        )
        self.queued = Gauge(
            "teal_queued_requests", "Allocations that wait for the engine", ["network"], **shared
        )
        self.open = Gauge("teal_open_requests", "Requests being answered", **shared)

    def set_queue_lengths(self, num_requests: dict[str, int]) -> None:
        """Set the number of queued requests, by network."""
        self.queued.clear()
        for network, num_queued in num_requests.items():
            self.queued.labels(network).set(num_queued)

    def measured(self, network: str, info: dict[str, Any]) -> None:
        """Set the number of stored matrices and the counter alarm."""
        self.measured_count.labels(network).set(info["matrices"])
        if info.get("counted"):
            self.counter_alarm.labels(network).set(int(info["counted"]["alarm"]))

    def forget(self, network: str) -> None:
        """Remove the series of a network."""
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
        """Record an allocation."""
        self.queue.observe(summary["queue_ms"] / 1e3)
        self.solve.observe(summary["solve_ms"] / 1e3)
        self.batch.observe(summary["batch"])
        if summary["gap"] is not None:
            self.gap.observe(summary["gap"])
        if summary.get("limit") is not None:
            self.next_limit.labels(network).set(summary["limit"])
        if summary.get("realised") is not None:
            self.next_realised.labels(network).set(summary["realised"])
        if summary["satisfied_demand"] is not None:
            self.satisfied.labels(network).set(summary["satisfied_demand"])
