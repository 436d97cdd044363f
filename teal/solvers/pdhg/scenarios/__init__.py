"""Several scenarios with the same splits, as one program."""
