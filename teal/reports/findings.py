"""What an evaluation found, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from teal.evaluation import Row
from teal.evaluation.cases import Protocol
from teal.reports.groups import by_level
from teal.reports.table import Quality, Summary, summarise
from teal.reports.text import milliseconds, percent, time_text

_SAME = 5e-4  # relative difference of two qualities that is none: five of ten thousand
_NEAR = 0.01  # relative loss of quality, up to which a faster scheme is worth naming


def compared(rows: Sequence[Row]) -> str:
    """What was compared on what, for a heading."""
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    networks = list(dict.fromkeys(row.topology for row in rows))
    return f"{_list(schemes)} on {_list(networks)}"


def findings(rows: list[Row]) -> list[str]:
    """Sentences about one network: the best, the fastest near it, what is certified, latency, failures.

    Args:
        rows: of one network and one objective.
    """
    levels = by_level(rows)
    offline = levels.pop((Protocol.OFFLINE.value, ""), [])
    said = list(_of_unchanged(offline)) if offline else []
    for (protocol, level), of_level in levels.items():
        ranked = _ranked(summarise(of_level), of_level[0].objective)
        if len(ranked) > 1:
            best, worst = ranked[0], ranked[-1]
            text = _text(best, of_level[0].objective)
            said.append(
                f"Under {protocol} {level}: best {best.scheme} ({text}), last {worst.scheme} "
                f"({_text(worst, of_level[0].objective)})."
            )
    failed: dict[str, int] = {}
    for row in rows:
        if not row.usable:
            failed[row.scheme] = failed.get(row.scheme, 0) + 1
    for scheme, count in failed.items():
        total = sum(row.scheme == scheme for row in rows)
        said.append(f"{scheme} gave no usable allocation in {count:,} of {total:,} cases.")
    return said


def _of_unchanged(rows: list[Row]) -> Iterator[str]:
    objective, summaries = rows[0].objective, summarise(rows)
    ranked = _ranked(summaries, objective)
    if not ranked:
        yield "No scheme gave a usable allocation."
        return
    best = [one for one in ranked if _behind(one, ranked[0], objective) <= _SAME]
    names = _list([one.scheme for one in best])
    yield f"Best: {names}, {_text(ranked[0], objective)}" + (" (no more than 0.05% apart)." if len(best) > 1 else ".")
    near = [one for one in ranked if _behind(one, ranked[0], objective) <= _NEAR and not math.isnan(one.total_s)]
    if near and len(ranked) > 1:
        fast = min(near, key=lambda one: one.total_s)
        slow = max((one for one in ranked if not math.isnan(one.total_s)), key=lambda one: one.total_s)
        yield (
            f"Fastest of those within 1% of it: {fast.scheme}, {time_text(fast.total_s)} a matrix in the median; the "
            f"slowest of all is {slow.scheme}, {time_text(slow.total_s)}."
        )
    proven = [one for one in ranked if not math.isnan(one.gap)]
    if proven:
        tight = min(proven, key=lambda one: one.gap)
        yield f"Narrowest certified gap on average: {tight.scheme}, {percent(tight.gap)}."
    timed = [one for one in ranked if not math.isnan(one.latency_mean)]
    if len(timed) > 1:
        low, high = (choose(timed, key=lambda one: one.latency_mean) for choose in (min, max))
        yield (
            f"Mean latency lies between {milliseconds(low.latency_mean)} ({low.scheme}) and "
            f"{milliseconds(high.latency_mean)} ({high.scheme})."
        )


def _ranked(summaries: Sequence[Summary], objective: str) -> list[Summary]:
    """Those with a quality, the best first."""
    known = [one for one in summaries if math.isfinite(_goodness(one, objective))]
    return sorted(known, key=lambda one: -_goodness(one, objective))


def _goodness(one: Summary, objective: str) -> float:
    """A number that is larger where the quality is better."""
    rules = Quality.of(objective).objective.rules
    return rules.sense * one.value if rules.measure_label else one.satisfied_demand


def _behind(one: Summary, best: Summary, objective: str) -> float:
    """Relative loss of quality against the best."""
    most = _goodness(best, objective)
    return (most - _goodness(one, objective)) / abs(most) if most else 0.0


def _text(one: Summary, objective: str) -> str:
    measure = Quality.of(objective).objective.rules.measure_label
    return f"{measure} {one.value:.4g}" if measure else f"{percent(one.satisfied_demand)} of the demand carried"


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))
