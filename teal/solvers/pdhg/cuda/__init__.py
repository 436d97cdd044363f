"""The engine of PDHG on NVIDIA GPUs."""
