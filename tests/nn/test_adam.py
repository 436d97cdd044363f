"""Adam, against that of torch.optim, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from teal.nn.adam import Adam


def _pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    one, other = (
        nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2), nn.Linear(2, 2))
        for _ in range(2)
    )
    other.load_state_dict(one.state_dict())
    return one, other


def _loss(model: nn.Module, step: int) -> torch.Tensor:
    given = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
    last = model[3] if step % 2 else nn.Identity()  # type: ignore[index]  # a layer without a gradient in some steps
    return last(model[2](model[1](model[0](given)))).square().sum()  # type: ignore[index]


def test_weights_and_state_have_the_bits_of_torch_after_steps_and_after_a_reload() -> None:
    mine, theirs = _pair()
    adam, reference = Adam(mine.parameters(), 0.01), torch.optim.Adam(theirs.parameters(), lr=0.01)
    for step in range(8):
        adam.rate = reference.param_groups[0]["lr"] = 0.01 / (1 + step)
        for model, optimiser in ((mine, adam), (theirs, reference)):
            optimiser.zero_grad()
            _loss(model, step).backward()
            optimiser.step()
        if step == 3:  # goes on with what a checkpoint has
            kept = {name: value.clone() for name, value in adam.tensors().items()}
            adam = Adam(mine.parameters(), 0.0)
            adam.load(kept)
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)
    state = reference.state_dict()["state"]
    expected = {
        f"{number}.{slot}": value
        for number, slots in state.items()
        for slot, value in slots.items()
    }
    assert expected.keys() == adam.tensors().keys()
    assert all(torch.equal(value, expected[name]) for name, value in adam.tensors().items())


def test_the_state_of_other_parameters_and_a_part_of_one_are_refused() -> None:
    mine, _ = _pair()
    adam = Adam(mine.parameters(), 0.01)
    _loss(mine, 1).backward()
    adam.step()
    kept = adam.tensors()
    with pytest.raises(ValueError, match="parameter 99"):
        adam.load({**kept, "99.step": torch.tensor(1.0)})
    del kept["0.exp_avg"]
    with pytest.raises(ValueError, match="exp_avg"):
        adam.load(kept)


@pytest.mark.slow
def test_a_step_does_not_import_the_compiler_of_torch() -> None:
    program = """
import sys, torch
from teal.nn.adam import Adam
layer = torch.nn.Linear(2, 2)
adam = Adam(layer.parameters(), 0.1)
layer(torch.ones(2)).sum().backward()
torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
adam.step()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
