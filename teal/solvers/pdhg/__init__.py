"""PDHG, primal-dual hybrid gradient (Chambolle & Pock 2011), over the path trie: the engine.

Saddle point, with S a scale that makes the objective of order 1 and prices p[e] = S y[e] / c[e]:

    max over w, min over y >= 0 of   sum demand v w / S - sum_e y[e] (load[e](w) / c[e] - 1),

the splits w[d, :] in {w >= 0, sum <= 1}.  One step T (step sizes as in Pock & Chambolle 2011, one a
demand so that the Euclidean projection stays the right prox):

    w' = Proj(w + (v / S - pathsum(y / c)) / (omega h[d])),        h[d] = max over k of sum of 1/c along the path;
    y' = max(0, y + omega (load(2 w' - w) / c - 1) / m[e]),        m[e] = sum of demand / c over all paths through e.

Balanced programs: the y lie on the simplex, loads are over S, and sum w = 1.

Around it, restarted Halpern PDHG with reflection (Lu & Yang 2024, "Restarted Halpern PDHG for linear
programming"): z <- (k + 1) / (k + 2) (2 T(z) - z) + 1 / (k + 2) z_0, with the y kept >= 0.  When the
fixed-point error ||T(z) - z|| has fallen far enough, or the cycle has grown long (PDLP's criteria,
Applegate et al. 2021), the anchor z_0 moves to T(z), and the primal weight omega half way, in its
logarithm, to how far y moved over how far w did.

:mod:`search` drives an engine: :mod:`plain` says what is computed, :mod:`fused` computes it.
"""

from teal.solvers.pdhg.engine import PdhgState
from teal.solvers.pdhg.fused import LANES, MOST_LANES
from teal.solvers.pdhg.search import PdhgResult, solve

__all__ = ["LANES", "MOST_LANES", "PdhgResult", "PdhgState", "solve"]
