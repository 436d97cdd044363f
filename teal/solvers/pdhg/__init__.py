"""PDHG, primal-dual hybrid gradient (Chambolle & Pock 2011), over the path trie.

Solves B traffic matrices of one network at once, to a certified gap between a feasible allocation
and a dual bound.  Entry point: :class:`Pdhg`, an engine of :mod:`teal.solvers.pipeline`.

Saddle point, with S a scale that makes the objective of order 1 and prices p[e] = S y[e] / c[e]:

    max over w, min over y >= 0 of   sum demand v w / S - sum_e y[e] (load[e](w) / c[e] - 1),

with splits w[d, :] in {w >= 0, sum <= 1}.  One step T, with the diagonal step sizes of Pock &
Chambolle (2011), one per demand, for which the prox remains the Euclidean projection:

    w' = Proj(w + tau (v / S - pathsum(y / c))),                tau = 1 / (omega h[d]);
    y' = max(0, y + omega (load(2 w' - w) / c - 1) / m[e]).

Min-max programs (objectives that minimise the largest utilisation): y lies on the simplex, loads
are divided by S, and sum w = 1.

The outer iteration is restarted Halpern PDHG with reflection (Lu & Yang 2024, "Restarted Halpern
PDHG for linear programming"): z <- (n + 1) / (n + 2) (2 T(z) - z) + 1 / (n + 2) z_0 in iteration n
of a cycle, with y clamped to >= 0.  A cycle restarts by the criteria of PDLP (Applegate et al.
2021): a sufficient decrease of the fixed-point error ||T(z) - z||, or a long cycle.  At a restart
the anchor z_0 moves to T(z), and log(omega), omega the primal weight, half way to the logarithm of
the ratio of the distances by which y and w moved.

| symbol | meaning                            | unit           | shape     | name in the code      |
|--------|------------------------------------|----------------|-----------|-----------------------|
| z      | iterate (w, y)                     |                |           | current               |
| T(z)   | result of a step from z            |                |           | stepped               |
| z_0    | Halpern's anchor                   |                |           | anchor                |
| n      | iterations since the last restart  | 1              | (B,)      | cycle_iterations      |
| w      | splits                             | share          | (B, D, K) | splits                |
| y      | scaled duals of the capacity rows  | 1              | (B, E)    | dual                  |
| p      | link prices, S y / c               | value/(Gbit/s) | (B, E)    | prices                |
|        | (y / c for a min-max program)     | 1/(Gbit/s)     |           |                       |
| v      | value of a Gbit/s on a path        | value/(Gbit/s) | (D, K)    | path_value            |
| c      | capacity                           | Gbit/s         | (B, E)    | capacity              |
| S      | value of all demand;               | value          | (B, 1)    | objective_scale       |
|        | min-max: largest utilisation       | 1              |           |                       |
|        | under even splits                  |                |           |                       |
| demand | demand                             | Gbit/s         | (B, D)    | demand                |
| v / S  | scaled value of a Gbit/s, minus    | 1/(Gbit/s)     | (B, D)    | scaled_value          |
|        | its scaled cost on a path          |                |           |                       |
| h      | largest sum of 1/c along a path of | 1/(Gbit/s)     | (B, D, 1) | inverse_capacity_sum  |
|        | a demand                           |                |           |                       |
| m      | utilisation if every path carried  | 1              | (B, E)    | full_path_utilisation |
|        | all of its demand (min-max: / S)   |                |           |                       |
| omega  | primal weight: multiplies the step | 1              | (B,)      | primal_weight         |
|        | of y, divides that of w            |                |           |                       |
| tau    | step size of w                     | Gbit/s         | (B, D)    | primal_step           |

:mod:`solver` selects the kernels and the start and splits the batch; :mod:`search` drives them to
the target gap; :mod:`reduction` presolves extreme magnitudes.  :mod:`plain` (reference, in torch),
:mod:`fused` (compiled, CPU) and :mod:`cuda` compute the same iteration.  For piecewise
constant marginal values (:mod:`teal.problem.steps`) the primal prox is
:func:`teal.problem.prox.project_steps`.
"""

from teal.deprecated import with_moved_names
from teal.solvers.pdhg.fused.engine import LANES, MAX_LANES, lanes_of
from teal.solvers.pdhg.model_start import may_start_from_model
from teal.solvers.pdhg.solver import Pdhg

__all__ = ["LANES", "MAX_LANES", "Pdhg", "lanes_of", "may_start_from_model"]

__getattr__ = with_moved_names(__name__)
