"""Metrics for Prometheus."""

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

disable_created_metrics()  # a series more for each one, which says when the process began to count


class Metrics:
    """The metrics of one app; a registry of its own, so that several apps live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # process_*: CPU time, memory, open files, start
        build = Info("teal_build", "Versions that run", registry=self.registry)
        build.info({"version": version("teal-te"), "python": platform.python_version()})
        shared: dict[str, Any] = {"registry": self.registry}
        fine = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
        self.requests = PrometheusCounter(
            "teal_requests", "Answers by route and status", ["route", "status"], **shared
        )
        self.latency = Histogram(
            "teal_request_seconds", "Time to answer", ["route"], buckets=fine, **shared
        )
        self.queue = Histogram(
            "teal_queue_seconds", "Time that allocations waited", buckets=fine, **shared
        )
        self.solve = Histogram("teal_solve_seconds", "Time of the engine", buckets=fine, **shared)
        self.batch = Histogram(
            "teal_batch_matrices", "Matrices solved together", buckets=(1, 2, 4, 8, 16), **shared
        )
        gaps = (1e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 1)
        self.gap = Histogram(
            "teal_gap", "Certified gap of answers, the widest of a request", buckets=gaps, **shared
        )
        self.satisfied = Gauge(
            "teal_satisfied_demand", "Of the last answer, by network", ["network"], **shared
        )
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
        self.warnings = Gauge(
            "teal_networks_with_warnings", "Networks whose link changes are not stored", **shared
        )
        self.queued = Gauge(
            "teal_queued_requests", "Allocations that wait for the engine", ["network"], **shared
        )
        self.open = Gauge("teal_open_requests", "Requests being answered", **shared)

    def waiting(self, requests: dict[str, int]) -> None:
        """Note how many requests wait, by network."""
        self.queued.clear()
        for network, count in requests.items():
            self.queued.labels(network).set(count)

    def measured(self, network: str, info: dict[str, Any]) -> None:
        """Note which matrices are kept."""
        self.measured_count.labels(network).set(info["matrices"])
        if info.get("counted"):
            self.counter_alarm.labels(network).set(int(info["counted"]["alarm"]))

    def forget(self, network: str) -> None:
        """Drop what is said of a network."""
        for gauge in (
            self.satisfied,
            self.measured_count,
            self.counter_alarm,
            self.next_limit,
            self.next_realised,
        ):
            with contextlib.suppress(KeyError):
                gauge.remove(network)

    def allocated(self, network: str, cost: dict[str, Any]) -> None:
        """Count an allocation."""
        self.queue.observe(cost["queue_ms"] / 1e3)
        self.solve.observe(cost["solve_ms"] / 1e3)
        self.batch.observe(cost["batch"])
        if cost["gap"] is not None:
            self.gap.observe(cost["gap"])
        if cost.get("limit") is not None:
            self.next_limit.labels(network).set(cost["limit"])
        if cost.get("realised") is not None:
            self.next_realised.labels(network).set(cost["realised"])
        if cost["satisfied_demand"] is not None:
            self.satisfied.labels(network).set(cost["satisfied_demand"])
