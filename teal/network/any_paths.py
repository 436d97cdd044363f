"""Type of a program's columns: explicit paths or segment lists."""

from typing import TYPE_CHECKING

from teal.network.candidate_lists import CandidateLists
from teal.network.path_set import PathSet

AnyPaths = PathSet | CandidateLists

if TYPE_CHECKING:
    # Most code handles explicit paths and does not run where PathOps.is_over_paths is false, which
    # mypy cannot know.
    ProblemPaths = PathSet
else:
    ProblemPaths = AnyPaths
