"""Random histories: repeatable, on small networks, and with the effects that they are said to
have."""

from __future__ import annotations

import numpy as np

from teal.objectives import ObjectiveName
from teal_next.pretrain import MAX_NODES, draw_history
from teal_study.learning.network_pool import NetworkPool

POOL = NetworkPool(("topozoo/Abilene", "gabriel/25/0", "gabriel/60/0"), ())


def test_the_same_seed_gives_the_same_history_and_another_seed_another() -> None:
    first, again, other = (
        draw_history(np.random.default_rng(seed), POOL, 30, 3)[1].read(slice(None))
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert first.shape != other.shape or not np.allclose(first, other)


def test_histories_are_of_small_networks_and_vary_in_time() -> None:
    silent, correlations = 0, []
    for seed in range(12):
        problem, traffic = draw_history(np.random.default_rng(seed), POOL, 60, 3)
        assert problem.topology.num_nodes <= MAX_NODES
        assert problem.objective.name is ObjectiveName.MAX_LINK_UTILISATION
        rates = traffic.read(slice(None))
        assert rates.shape == (60, problem.paths.num_demands)
        assert np.isfinite(rates).all()
        assert (rates >= 0).all()
        assert (rates.std(0) > 0).all()
        silent += int((rates == 0).any())
        total = rates.sum(1) - rates.sum(1).mean()
        correlations.append(float((total[1:] * total[:-1]).sum() / (total**2).sum()))
    assert 0 < silent < 12, "sources are silent for a while in some series, not in all"
    assert min(correlations) < 0.3 < 0.7 < max(correlations), (
        "from independent matrices to slow drift"
    )
