"""Random numbers of training: published numbers of SplitMix64, and normal ones against the formula
in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from teal_study.learning.noise import _GAMMA, RowStreams, _mixed, row_seeds

# The first numbers from the seed 1234567, as Rosetta Code has them ("Pseudo-random
# numbers/Splitmix64").
_SEED = 1234567
_PUBLISHED = (
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
)


def _bits(seed: int, count: int) -> list[int]:
    """Numbers of SplitMix64 by integers of Python."""
    most, found = 2**64 - 1, []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & most
        mixed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & most
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & most
        found.append(mixed ^ (mixed >> 31))
    return found


def test_bits_are_those_of_splitmix64() -> None:
    found = _mixed(_SEED + torch.arange(1, 6) * _GAMMA).numpy().view(np.uint64)
    assert tuple(found.tolist()) == _PUBLISHED == tuple(_bits(_SEED, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_go_on_where_the_last_ended(dtype: torch.dtype) -> None:
    """Box and Muller: a radius of the upper half of the bits, an angle of the lower one."""
    seeds = [-5, _SEED]
    streams = RowStreams(torch.tensor(seeds))
    found = [streams.normal(torch.zeros(2, 3, 1, dtype=dtype)) for _ in range(2)]
    for row, seed in enumerate(seeds):
        bits = _bits(seed % 2**64, 4)
        radius = np.sqrt([-2 * np.log(((one >> 32) + 1) / 2**32) for one in bits])
        angle = np.array([2 * np.pi * (one % 2**32) / 2**32 for one in bits])
        for draw, numbers in enumerate(found):
            two = slice(2 * draw, 2 * draw + 2)  # each draw of 3 takes 2 of them
            cosines, sines = radius[two] * np.cos(angle[two]), radius[two] * np.sin(angle[two])
            expected = np.append(cosines, sines)[:3]
            np.testing.assert_allclose(numbers[row, :, 0], expected, rtol=1e-4, atol=1e-6)


def test_numbers_of_a_row_are_the_same_in_any_part_of_a_batch_and_differ_by_row_and_step() -> None:
    whole = RowStreams(torch.from_numpy(row_seeds(0, 3, [5, 7, 9]))).normal(torch.zeros(3, 400))
    part = RowStreams(torch.from_numpy(row_seeds(0, 3, [7]))).normal(torch.zeros(1, 400))
    assert torch.equal(whole[1:2], part)
    other = RowStreams(torch.from_numpy(row_seeds(0, 4, [7]))).normal(torch.zeros(1, 400))
    together = torch.corrcoef(torch.cat([whole, other]))
    assert float((together - torch.eye(4)).abs().max()) < 0.2  # 4 standard deviations
    assert abs(float(whole.mean())) < 0.12
    assert float(whole.std()) == pytest.approx(1, abs=0.09)
