"""The learned hedge against the mixture that it corrects, and the checkpoint that comes with
Teal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from teal.errors import InputError
from teal.nn.hedge_gate import HedgeGate, HedgeGateConfig
from teal.schemes.hedges import make_hedge
from teal_next.learned import Learned
from teal_next.mixture import Mixture
from tests.teal_next.series import make_past

SERIES = np.random.default_rng(0).lognormal(0, 0.4, (40, 3)) * 3


def _mixture() -> Mixture:
    return Mixture({name: make_hedge(name) for name in ("last", "saa12", "peak12")}, warm_up=5)


def test_an_untrained_model_is_the_mixture() -> None:
    learned, mixture = Learned(HedgeGate(HedgeGateConfig(8)), _mixture()), _mixture()
    for known in (20, 21, 22):
        past = make_past(SERIES).before(known)
        torch.testing.assert_close(
            learned.allocate(past), mixture.allocate(past), atol=1e-5, rtol=1e-5
        )


@pytest.mark.system
def test_the_checkpoint_of_teal_serves_a_network_that_it_never_saw() -> None:
    hedge = make_hedge("learned")
    for known in (1, 2, 40):
        splits = make_hedge("learned").allocate(make_past(SERIES).before(known))
        torch.testing.assert_close(
            splits.sum(-1), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0
        )
    assert bool((hedge.allocate(make_past(SERIES)) >= 0).all())


def test_another_kind_of_model_is_refused() -> None:
    with pytest.raises(InputError, match="hedge"):
        make_hedge("learned", Path("universal"))
