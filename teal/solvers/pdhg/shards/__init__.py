"""Solve of one matrix whose paths are divided into shards, in files or processes."""
