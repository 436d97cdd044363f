"""The schemes that Teal is compared with, one file each: solve(problem) -> Allocation."""
