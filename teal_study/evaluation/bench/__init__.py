"""A frozen set of problems with certified optima, and results of any program, validated and ranked.

- :mod:`problems`: the set: networks, matrices, cases, how they are made, written and read.
- :mod:`runs`: schemes of Teal on the set.
- :mod:`ranking`: results as files, checked by arithmetic of their own, and scores.
"""
