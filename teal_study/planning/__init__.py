"""Planning: losses by failures of cables, links, nodes and groups (`teal plan`)."""
