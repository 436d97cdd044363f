"""IGP metric optimisation: metrics that minimise the largest link utilisation."""
