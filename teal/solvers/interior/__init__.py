"""Primal-dual interior-point solver of programs over paths, with certified gaps.

Every program has blocks, a demand and its paths, that links alone couple.  With x[p] the share of
its demand on path p, s[d] the unserved share, c[p] the value of all of the demand on the path,
A[e, p] the demand for the links e of p, and b the capacities,

    max sum c[p] x[p]   s.t.   sum of x over the block of d + s[d] = 1,  A x + t = b,  x, s, t >= 0,

and for the largest link utilisation

    min theta           s.t.   sum of x over the block of d = 1,          A x + t = theta b.

The method is Mehrotra's predictor-corrector (SIAM J. Optimization 2, 1992) with Gondzio's multiple
centrality correctors (Computational Optimization and Applications 6, 1996).  It follows the central
path x z = mu, s z_s = mu, t y = mu to mu = 0; y are the dual prices of links, lambda[d] the
multiplier of a block, and z[p] = (A' y)[p] - c[p] - lambda[d] the reduced costs.  Elimination of x
and of each block from the Newton system leaves a Schur complement of one row for each link that can
bind.  With the scaling D = x / z, and with the sums v[d] of D[p] A[:, p] and delta[d] of D[p] over
a block,

    S dy = rhs,    S = A D A' + diag(t / y) - sum over d of v[d] v[d]' / delta[d].

S is dense and positive definite.  Where theta is minimised it loses rank along y as mu falls, and
an augmented-Lagrangian term restores it (:func:`teal.solvers.interior.newton.regularise`).

Modules: `presolve` builds the program over the links that can bind; `starts` makes cold and warm
starting points; `newton` is one iteration; `search` iterates to a certified gap; `selection` does
so from given splits and prices, over the columns that these leave; `engine` solves
the matrices of a :class:`teal.problem.Problem` and predicts its time; `master`, `columns` and
`all_paths` are column generation over all paths.

Symbols (Q columns, G blocks, n rows, C upper bounds on columns):

    symbol  meaning                                  unit              shape   name
    x       share of the demand on a path            1                 (Q,)    share
    z       reduced cost of a path                   value             (Q,)    reduced_cost
    s       unserved share                           1                 (G,)    unserved
    z_s     its reduced cost                         value             (G,)    unserved_dual
    lambda  multiplier of a block                    value             (G,)    multiplier
    y       dual price of a link                     value / (Gbit/s)  (n,)    price
    t       slack of a link's capacity               Gbit/s            (n,)    slack
    theta   largest link utilisation                 1                 (1,)    theta
    u - x   slack of a column's upper bound u        1                 (C,)    bound_slack
    w       its dual                                 value             (C,)    bound_dual
    mu      complementarity (barrier parameter)      value             scalar  mu
    sigma   centring parameter                       1                 scalar  sigma
    D       scaling x / z                            1 / value         (Q,)    scaling
    delta   sum of D over a block                    1 / value         (G,)    delta
    S       Schur complement, then its factor        (Gbit/s)^2/value  (n, n)  schur
    A' y    price of a path                          value             (Q,)    path_price
"""
