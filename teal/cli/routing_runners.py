"""What the commands about shortest-path routing print."""

from __future__ import annotations

import json
import sys

from teal.cli.runners import EXIT_OK, Notify, print_tables
from teal.config import SimulateConfig


def simulate(config: SimulateConfig, notify: Notify) -> int:
    """Loads of today's routing, without failure and under each."""
    from teal.reports.simulate import describe, render
    from teal.studies.simulate import PAGE, run_simulate

    result = run_simulate(config, notify)
    if config.json:
        print(json.dumps(result.to_json(), allow_nan=False))
        return EXIT_OK
    print(describe(result))
    sys.stdout.flush()
    print_tables(render(result, config.worst))
    if config.out is not None:
        print(f"{config.out / PAGE}: open it in a browser; tables are beside it")
    return EXIT_OK
