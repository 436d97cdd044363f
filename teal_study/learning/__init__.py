"""How models learn: losses, learners, the training loops of `teal train` and `teal pretrain`, the
state of a run.
"""
