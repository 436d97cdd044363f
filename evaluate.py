"""``python evaluate.py ...`` is ``teal evaluate ...``."""

import sys

from teal.cli import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
