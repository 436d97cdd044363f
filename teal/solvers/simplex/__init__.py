"""Dual simplex method over given paths, from the basis of a similar matrix.

The program of one matrix has D blocks (demands), P paths and n rows (links).  With f[p] the flow on
a path, s[g] the unserved flow of a demand, t[r] the slack of a link, v the value of a Gbit/s, d the
demands and c the capacities,

    max sum v[p] f[p]   s.t.   sum of f over the block of g + s[g] = d[g],   A f + t = c,
                               f, s, t >= 0,

where A[r, p] is 1 for the links r of path p.  A change of demands or capacities changes only the
right-hand side: an optimal basis stays dual feasible, and the dual simplex method repairs its
primal infeasibilities in few pivots under light load, in up to half of n under heavy load.

Generalized upper bounding (Dantzig and Van Slyke, J. Computer and System Sciences 1, 1967) keeps
the basis matrix at n rows instead of D + n: every block has one *key* column in the basis, and the
working basis W has the n other basic columns, a path or unserved flow q of block g as a[q] - a[key
of g].  Its inverse is dense.  With flows in Gbit/s, W does not depend on demands and capacities, so
that one inverse serves matrix after matrix.

The leaving column has the largest squared infeasibility over the squared norm of its row of the
inverse, after the dual steepest-edge rule (Forrest and Goldfarb, Mathematical Programming 57,
1992).  Values are perturbed by one part in 10^8, which breaks ties of the ratio test.  A basis that
is not dual feasible is made so by cost shifting (Koberstein, The dual simplex method, 2005): a
positive reduced cost of a column is subtracted from its value, and primal simplex iterations follow
once the true costs are back.

Modules: `basis` has the program, the basis and its operations; `method` the dual and the primal
iterations; `engine` solves the matrices of a :class:`teal.problem.Problem`.

Symbols (columns: P paths, then D unserved flows, then n slacks):

    symbol  meaning                               unit              shape         name
    f       flow of the columns of W              Gbit/s            (n,)          flow
            flow of the keys                      Gbit/s            (D,)          key_flow
    y       dual price of a link                  value / (Gbit/s)  (n,)          price
    v       value of a Gbit/s on a column         value / (Gbit/s)  (P + D + n,)  value
    rho     row of the inverse of W               1                 (n,)          inverse[i]
    alpha   entry of the pivot row                1                 scalar        alpha
    u       entering column in terms of W         1                 (n,)          tableau_column
    w       multiplier of a block                 value / (Gbit/s)  scalar        multiplier
    v-w-A'y reduced cost                          value / (Gbit/s)  scalar        reduced_cost
"""
