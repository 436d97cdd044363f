"""Traffic matrices from interface byte counters: estimates with prediction intervals, and
consistency checks of the counters.

With the measurement matrix F (R, D), the counters y (R,) of an interval, their standard deviations
s (R,), a prior p (D,) and the dispersion phi (Gbit/s, variance over mean of the prior's error), an
estimate is

    x = argmin over x >= 0 of  sum_d KL(x_d || p_d) / phi + 1/2 sum_r ((y_r - (F x)_r) / s_r)^2,
    KL(x || p) = x log(x / p) - x + p

(Zhang, Roughan, Lund, Donoho: "Estimating point-to-point and point-to-multipoint traffic matrices",
IEEE/ACM ToN 2005)

- :mod:`teal_ip.counters.projection` solves this program by Newton's method on its dual;
- :mod:`teal_ip.counters.estimator`: priors (gravity, tracked shares, history), consecutive
  intervals, and prediction intervals for each demand;
- :mod:`teal_ip.counters.repair` and :mod:`teal_ip.counters.check`: repair of wrong counters, and
  agreement of counters, matrix and topology;
- :mod:`teal_ip.counters.worst_load`: the largest load over all matrices that the counters allow.
"""
