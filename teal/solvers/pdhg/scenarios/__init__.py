"""One program with shared splits for several traffic scenarios."""
