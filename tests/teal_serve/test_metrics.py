"""Prometheus metrics of an allocation, against figures written by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal_serve.http.metrics import Metrics


def test_times_are_in_seconds_and_figures_of_a_network_go_with_it() -> None:
    metrics = Metrics()
    metrics.record_allocation(
        "b4",
        {
            "queue_ms": 250.0,
            "solve_ms": 40.0,
            "batch": 3,
            "gap": 0.004,
            "limit": 1.07,
            "realised": 1.02,
            "satisfied_demand": 0.75,
        },
    )
    metrics.record_allocation(
        "b4",
        {"queue_ms": 1750.0, "solve_ms": 60.0, "batch": 1, "gap": None, "satisfied_demand": None},
    )
    of_all = {"queue_seconds": 2.0, "solve_seconds": 0.1, "batch_matrices": 4.0, "gap": 0.004}
    for name, expected in of_all.items():
        assert metrics.registry.get_sample_value(f"teal_{name}_sum") == pytest.approx(expected), (
            name
        )
    of_network = {"satisfied_demand": 0.75, "next_limit": 1.07, "next_realised": 1.02}
    for name, expected in of_network.items():
        assert metrics.registry.get_sample_value(f"teal_{name}", {"network": "b4"}) == expected, (
            name
        )
    metrics.forget("b4")
    assert all(
        metrics.registry.get_sample_value(f"teal_{name}", {"network": "b4"}) is None
        for name in of_network
    )
