"""The result of `teal upgrade` as a table and a page with a map."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from teal.evaluation.upgrade import UpgradePlan
from teal.reports.maps import packed_utilisation
from teal.reports.page import Cell, Column, Section, write_page
from teal.web.layout import drawing


def render_upgrade(plan: UpgradePlan, most: int = 30) -> Iterator[Table]:
    """A table of what to buy, the dearest first."""
    table = Table(title="what to buy", title_justify="left")
    for column in ("cable", "capacity", "buy", "cost"):
        table.add_column(column, justify="left" if column == "cable" else "right")
    for one in plan.purchases[:most]:
        name = escape(f"{one.source} - {one.target}")
        table.add_row(name, f"{one.capacity:g}", f"{one.bought:.6g}", f"{one.cost:.6g}")
    if plan.purchases:
        yield table


def write_upgrade_page(path: Path, plan: UpgradePlan) -> None:
    """A page with a map of what is bought, over the largest purchase, and the table of purchases."""
    topology = plan.topology
    bought = plan.upgraded.capacity - topology.capacity
    share = (bought / max(float(bought.max(initial=0.0)), 1e-300)).astype(np.float32)
    drawn = drawing(
        topology.node_names, topology.coordinates, topology.link_source, topology.link_target, plan.upgraded.capacity
    )
    numbers = [
        (f"{one.source} - {one.target}", [one.capacity, one.bought, one.capacity + one.bought, one.cost])
        for one in plan.purchases
    ]
    section = Section(
        title=topology.name,
        facts=f"{topology.num_nodes} nodes, {len(topology.cables())} cables, {len(plan.scenarios):,} scenarios",
        traffic="purchase",
        columns=[
            Column("capacity before, Gbit/s"), Column("bought, Gbit/s", most_is_best=True),
            Column("capacity after, Gbit/s"), Column("cost", most_is_best=True),
        ],
        lines=[(name, [Cell(f"{number:.6g}", number) for number in row]) for name, row in numbers],
        charts=(),
        row_label="cable",
        map={
            **drawn, "cases": ["what is bought, share of the largest purchase"], "schemes": ["purchase"],
            "utilisation": {"0/0": packed_utilisation(share)},
        },
    )  # fmt: skip
    write_page(path, f"What to buy for {topology.name}", plan.describe().replace("\n", ".  "), [section])
