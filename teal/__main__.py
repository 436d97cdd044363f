"""``teal`` and ``python -m teal``: an interruption ends both quietly, also while modules are still
being loaded.
"""

import sys


def main() -> int:
    """Run the command line; the exit code, 130 after Ctrl-C as shells have it."""
    try:
        from teal.cli import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("\nteal: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
