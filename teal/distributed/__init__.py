"""More than one process or machine, through Ray."""
