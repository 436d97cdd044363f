"""``python train.py ...`` is ``teal train ...``."""

import sys

from teal.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
