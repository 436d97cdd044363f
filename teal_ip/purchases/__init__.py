r"""Which capacity to buy, so that every scenario fits: Benders' cuts from link prices.

A scenario s is a matrix and what has failed.  Buy a_c >= 0 Gbit/s on cable c (both directions) at
cost k_c each, where each of parallel links is, with its opposite one, a cable of its own, so that
splits exist in every scenario whose load is at most u (c_e + a_cable(e)) on every live link e.  Any
prices y >= 0 of the live links of one scenario prove, since no split is cheaper than the cheapest
live path,

    u sum_e y_e a_cable(e)
        >=  sum_d demand_d min over live paths of sum_{e in path} y_e  -  u sum_e y_e c_e,   (cut)

for every purchase that serves the scenario, wherever the prices come from: approximate ones give a
weaker cut, never a wrong one (Benders 1962).  The master program, min k'a over the cuts so far, has
one column a cable; its bound is computed again from its duals.

- :mod:`scenarios <teal_ip.purchases.scenarios>`: what has to fit;
- :mod:`cuts <teal_ip.purchases.cuts>`: the cuts, and the cheapest purchase, in any amounts or in
  modules;
- :mod:`testing <teal_ip.purchases.testing>`: which scenarios fit a purchase;
- :mod:`benders <teal_ip.purchases.benders>`: the search;
- :mod:`search <teal_ip.purchases.search>`: from settings to a plan, with the bound over all paths;
- :mod:`hose <teal_ip.purchases.hose>`: demands of which only the sums at each node are known;
- :mod:`schedule <teal_ip.purchases.schedule>`: what to buy when.
"""
