r"""Two-segment routing with ECMP: primal-dual hybrid gradient (PDHG; Chambolle & Pock 2011) over
all midpoints, of which the solver holds K per demand in memory.

With g(t, u, e) the share of a Gbit/s from u to t that ECMP sends over link e
(:mod:`teal.pathops.segment_passes`), a demand d = (s, t) sends the share x[d, m] by midpoint m (m =
t: straight to t).  The load of a link is

    load[e] = sum_d demand[d] sum_m x[d, m] (g(m, s, e) + g(t, m, e)),

and the programs are

    max_link_utilisation:  min theta   s.t.  load[e] <= theta c[e],  sum_m x[d, m] = 1,   x >= 0
    total_flow:            max sum_d demand[d] sum_m x[d, m]   s.t.  load[e] <= c[e],  sum_m x[d, m] <= 1,   x >= 0.

For link prices p >= 0 let pi[t, u] = sum_e g(t, u, e) p[e], and cost[d] = min_m pi[m, s] + pi[t,
m].  Then

    theta >= sum_d demand[d] cost[d] / sum_e c[e] p[e]
    flow  <= sum_e c[e] p[e] + sum_d demand[d] max(0, 1 - cost[d]),

The bounds range over all midpoints, so they hold for the whole program and not for the columns in
memory alone.

Symbols in the code: ``y`` = c p (on the simplex when theta is minimised), ``mid`` (D, K) midpoints
in memory, -1 for an empty slot, ``share`` (D, K) x, ``tau`` and ``sigma`` step sizes, ``omega``
primal weight.  Entry points: :func:`teal_ip.segments.search.solve` (two segments),
:func:`teal_ip.segments.over_lists.solve_over_lists` (any length and objective),
:func:`teal_ip.segments.static_lists.static_lists` (several matrices and failures, few policies).
"""
