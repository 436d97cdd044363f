"""What the commands compute, without the files that they write: from settings to problems, from schemes to figures."""

from teal.evaluation.evaluate import Evaluation
from teal.evaluation.rows import CaseResult, Row

__all__ = ["CaseResult", "Evaluation", "Row"]
