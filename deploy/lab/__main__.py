"""The laboratory's commands: python -m deploy.lab up|down|status|cut|mend|run|monitor."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import teal
from deploy.lab.experiment import Experiment, Settings, leftovers
from deploy.lab.network import Lab, LabError, check_machine, down
from deploy.lab.page import write_page_of
from teal.errors import InputError

ABILENE = Path(__file__).with_name("abilene.json")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0, or 1 with what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m deploy.lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("up", "make the routers"),
        ("run", "the whole experiment, from nothing to a page"),
        ("monitor", "counters by SNMP, snmp_exporter and Prometheus, as files for teal estimate"),
    ):
        one = commands.add_parser(name, help=text)
        one.add_argument(
            "--topology", default=str(ABILENE), help="file or name of the network (Abilene)"
        )
        one.add_argument(
            "--scale",
            type=float,
            default=1e-3,
            help="bit/s here for a bit/s of the network (0.001)",
        )
    for name, files, window in (
        ("run", "lab.json and lab.html", 20.0),
        ("monitor", "the files", 60.0),
    ):
        one = commands.choices[name]
        one.add_argument(
            "--window", type=float, default=window, help=f"seconds of each measurement ({window:g})"
        )
        one.add_argument(
            "--interval",
            type=float,
            default=4.0,
            help="seconds between two readings of counters (4)",
        )
        one.add_argument("--seed", type=int, default=1, help="of the demands (1)")
        one.add_argument(
            "--out", type=Path, default=Path("runs/lab"), help=f"folder for {files} (runs/lab)"
        )
    commands.add_parser("down", help="remove everything, also what a killed run left")
    commands.add_parser("status", help="what is there")
    for name in ("cut", "mend"):
        one = commands.add_parser(name, help=f"{name} the cables between two routers")
        one.add_argument("a")
        one.add_argument("b")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except (LabError, InputError, TimeoutError) as error:
        print(f"lab: {error}", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"lab: {' '.join(error.cmd)}: {error.stderr.strip()}", file=sys.stderr)
    return 1


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "down":
            down()
        case "status":
            names = list(leftovers())
            print(f"{len(names)} namespaces" + (f": {', '.join(sorted(names))}" if names else ""))
        case "up":
            check_machine()
            topology = teal.load_topology(options.topology, default_capacity=10.0)
            lab = Lab(topology, options.scale)
            lab.up()
            print(
                f"{topology.num_nodes} routers of {topology.name}; routes after "
                f"{lab.wait_for_routes():.1f} s"
            )
        case "cut" | "mend":
            lab = Lab.current()
            index = lab.topology.node_index()
            lab.topology.find_links(options.a, options.b)
            lab.set_cable(
                index[options.a], index[options.b], "down" if options.command == "cut" else "up"
            )
        case "run" | "monitor":
            settings = Settings(
                options.topology,
                options.scale,
                options.window,
                options.interval,
                options.out,
                options.seed,
            )
            options.out.mkdir(parents=True, exist_ok=True)
            run = Experiment(settings, lambda text: print(text, file=sys.stderr, flush=True))
            if options.command == "monitor":
                run.monitor()
                at = options.out
                print(
                    f"teal estimate --topology {at}/topology.json --counters {at}/counters.json "
                    "--interfaces "
                    f"{at}/interfaces.csv --out {at}/estimate"
                )
                return 0
            figures = run.run()
            (options.out / "lab.json").write_text(
                json.dumps({**figures, "links": run.table, "events": run.events}, indent=1)
            )
            write_page_of(options.out / "lab.html", run)
            print(json.dumps(figures, indent=1))
            print(f"{options.out / 'lab.html'}: open it in a browser", file=sys.stderr)
    return 0


if __name__ == "__main__":
    np.set_printoptions(linewidth=120)
    sys.exit(main())
