"""``python -m teal``."""

import sys

from teal.cli import main

sys.exit(main())
