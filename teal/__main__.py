"""``teal`` and ``python -m teal``: an interruption ends both quietly, also while modules are still
being loaded.
"""

import atexit
import gc
import sys

# Objects that were made and are still there, after which Python looks for garbage; 700 by default.
# Modules stay: while torch and others are loaded, looking takes a fifth of the time.
_COLLECT_AFTER = 50_000


def main() -> int:
    """Run the command line; the exit code, 130 after Ctrl-C as shells have it."""
    gc.set_threshold(_COLLECT_AFTER)
    # At its end the interpreter looks for garbage among all objects, several times: half a second
    # with torch loaded, for memory that the system takes back at once.
    atexit.register(gc.freeze)
    try:
        from teal.cli import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("\nteal: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
