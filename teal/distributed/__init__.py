"""Training and bulk allocation in several processes or on several machines, through Ray."""
