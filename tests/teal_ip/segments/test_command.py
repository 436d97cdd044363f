"""Steps of teal segments after the search."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np

import teal
from baselines import arc_form
from teal.app.instance import demand_weights
from teal_ip.segments.command import (
    SegmentReport,
    load_segments,
    run_segments,
    with_tighter_free_bound,
)
from teal_ip.segments.settings import SegmentsConfig


def test_a_loose_bound_over_any_paths_is_tightened_with_the_weights_of_the_demands(
    tmp_path: Path,
) -> None:
    config = SegmentsConfig(
        topology="topohub:sndlib/abilene",
        traffic="gravity:load=4,count=1,seed=1",
        objective="weighted_flow",
        max_segments=1,
        out=tmp_path / "lists.json",
    )
    report = run_segments(config, lambda text: None)
    assert isinstance(report, SegmentReport)
    loose = dataclasses.replace(report, free_bound=math.inf, free_gap=1.0)
    dag, traffic = load_segments(config, lambda text: None)
    tight = with_tighter_free_bound(config, loose, dag, traffic, lambda text: None)
    # The optimum over any paths, by an LP over flows on links.
    weight = demand_weights(config, dag.topology, traffic, lambda text: None)
    assert weight is not None
    assert np.ptp(weight) > 0
    paths = teal.compute_paths(dag.topology, pairs=traffic.pairs, num_paths=1)
    problem = teal.Problem.create(
        dag.topology, paths, "weighted_flow", traffic.read([0]), weight=weight
    )
    optimum = arc_form.optimum(problem)
    assert optimum * (1 - 1e-9) <= tight.free_bound <= 1.02 * optimum
