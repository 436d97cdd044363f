"""A program over explicit paths, for oracles that use none of the path operations."""

from __future__ import annotations

import numpy as np

from teal.problem import Problem


def explicit_paths(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Of B = 1, over the n live paths: (E, n) which links a path uses, and (D, n) which demand it
    serves."""
    mask = problem.path_mask[0].numpy()
    variables = np.argwhere(mask)
    use, of_demand = (
        np.zeros((problem.paths.num_links, len(variables))),
        np.zeros((len(mask), len(variables))),
    )
    for column, (d, k) in enumerate(variables.tolist()):
        use[problem.paths.links_of(d, k), column] = 1
        of_demand[d, column] = 1
    return use, of_demand
