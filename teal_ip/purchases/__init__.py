r"""Capacity expansion: the cheapest capacity so that every scenario fits, by Benders decomposition.

A scenario s is a matrix and a failure.  Buy a_c >= 0 Gbit/s on cable c (both directions) at cost
k_c each, so that in every scenario there are splits whose load is at most u (c_e + a_cable(e)) on
every live link e.  Each of several parallel links is, with its opposite one, a cable of its own.
Any dual prices y >= 0 of the live links of one scenario prove, since no split is cheaper than the
cheapest live path,

    u sum_e y_e a_cable(e)
        >=  sum_d demand_d min over live paths of sum_{e in path} y_e  -  u sum_e y_e c_e,   (cut)

for every expansion that serves the scenario, for any prices: approximate ones give a weaker cut,
never a wrong one (Benders 1962).  The master program, min k'a over the cuts so far, has one column
per cable; its bound is recomputed from its duals.

- :mod:`scenarios <teal_ip.purchases.scenarios>`: matrices under failures, costs and limits;
- :mod:`cuts <teal_ip.purchases.cuts>`: the cuts, and the master program, continuous or in modules;
- :mod:`testing <teal_ip.purchases.testing>`: the subproblems: which scenarios fit an expansion;
- :mod:`benders <teal_ip.purchases.benders>`: the decomposition;
- :mod:`search <teal_ip.purchases.search>`: from settings to a plan, with the bound over all paths;
- :mod:`hose <teal_ip.purchases.hose>`: demands of the hose model;
- :mod:`schedule <teal_ip.purchases.schedule>`: expansion over time.
"""
