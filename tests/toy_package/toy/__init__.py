"""A package that adds something of each kind to Teal; each module needs one entry point."""
