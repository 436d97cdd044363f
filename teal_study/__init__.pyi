"""The public names of this package."""

from .api import evaluate, plan, train
from .evaluation.report import EvaluationReport
from .learning.learners import register_learner
from .learning.train_command import TrainReport
from .planning.plan_command import FailurePlan

__all__ = [
    "EvaluationReport",
    "FailurePlan",
    "TrainReport",
    "evaluate",
    "plan",
    "register_learner",
    "train",
]
