"""Allocations: solved, in bulk, exported, updated, proved."""
