"""One matrix whose paths are divided into shards, in files or processes."""
