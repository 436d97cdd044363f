"""PDHG engine on NVIDIA GPUs, with recorded (CUDA graph) launches."""
