"""The columns that a program's demands may use: explicit paths, or segment lists."""

from typing import TYPE_CHECKING

from teal.network.candidate_lists import CandidateLists
from teal.network.path_set import PathSet

AnyPaths = PathSet | CandidateLists

if TYPE_CHECKING:
    # Most code walks explicit paths.  Where PathOps.is_over_paths is false it does not run; mypy
    # cannot know that.
    ProblemPaths = PathSet
else:
    ProblemPaths = AnyPaths
