"""Faults put into the program by hand, each with the test that must notice it:
``python -m tests.mutants``.

A mutant is a text of a file, another text in its place, and what goes wrong for a user.  The files
of this folder have them by room; a mutant that no test notices says why it is let live.  Not part
of CI: half an hour on two cores.
"""
