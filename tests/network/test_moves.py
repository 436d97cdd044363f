"""Paths to stay on and to move onto, against the links of the paths that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from teal.network.path_changes import with_moves
from teal.testing import random_problem


@pytest.mark.parametrize("seed", range(5))
def test_columns_have_the_links_of_their_paths_and_those_to_move_onto_one_more(seed: int) -> None:
    paths = random_problem(seed, nodes=9, num_paths=4, batch=1).paths
    moves = with_moves(paths)
    assert with_moves(paths) is moves
    assert (moves.num_links, moves.num_paths) == (paths.num_links + 1, 2 * paths.num_paths)
    for d in range(paths.num_demands):
        for k in range(paths.num_paths):
            links = paths.links_of(d, k)
            assert moves.links_of(d, 2 * k) == links
            assert moves.links_of(d, 2 * k + 1) == ([*links, paths.num_links] if links else [])
    exists = moves.leaf >= 0
    assert not (exists[:, 1:] & ~exists[:, :-1]).any(), "paths that are missing are the last ones"
    ends = moves.leaf[exists]
    assert len(np.unique(ends)) == len(ends), "no two paths end at one node"
    parent = moves.trie.parent
    assert (parent < np.arange(len(parent))).all(), "parents come before children"
