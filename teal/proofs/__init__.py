"""Proofs of allocations: written by Teal, checked by one file without it."""
