"""How models learn: learners, losses, the training loop, checkpoints."""
