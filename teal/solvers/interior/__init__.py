r"""Interior points: programs over paths to any accuracy, in tens of iterations.

Every program over paths has blocks, a demand and its paths, that links alone couple.  With x[p] the
share of its demand on path p, s[d] the share that is not carried, c[p] the value of all of the
demand on the path, A[e, p] the demand for the links e of p, and b the capacities,

    max sum c[p] x[p]   s.t.   sum of x over the block of d + s[d] = 1,  A x + t = b,  x, s, t >= 0,

and for the largest utilisation

    min theta           s.t.   sum of x over the block of d = 1,          A x + t = theta b.

A primal-dual method (Mehrotra, SIAM J. Optimization 2, 1992) follows x z = mu, t y = mu to mu = 0,
where y are the prices of links and z[p] = (A' y)[p] - c[p] - lambda[d] the reduced costs.  Newton's
step eliminates x, then each block by one division.  With D = x / z, v[d] = sum of D[p] A[:, p] and
delta[d] = sum of D over the block, what is left has the size of the links that can bind:

    S dy = right side,    S = A D A' + diag(t / y) - sum over d of v[d] v[d]' / delta[d].

S is dense and positive definite; where theta is minimised it loses that along y as mu falls, and a
rank-one term of b' y = 1 restores it (:func:`teal.solvers.interior.newton.regularise`).  A link
whose load is at most its capacity even if every demand that can use it does cannot bind; it leaves
the program, exactly.

Symbols, in all files of this package: `share` x, `rest` s, `reduced` z, `slack` t, `price` y,
`weight` D, `target` mu, `ratio` the centring parameter sigma.
"""
