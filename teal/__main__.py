"""Entry point of ``teal`` and ``python -m teal``, which ends without a traceback on Ctrl-C, also
while modules are being loaded.
"""

import atexit
import gc
import sys

# Number of new objects after which Python collects garbage; 700 by default.  While torch and other
# modules are loaded, which create no garbage, collection would take a fifth of the time.
_GC_THRESHOLD = 50_000


def main() -> int:
    """Run the command line, and return its exit code; 130 after Ctrl-C, as shells do."""
    gc.set_threshold(_GC_THRESHOLD)
    # Skip the garbage collections at the exit of the interpreter, which take half a second with
    # torch loaded; the operating system frees the memory anyway.
    atexit.register(gc.freeze)
    try:
        from teal.cli import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("\nteal: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
