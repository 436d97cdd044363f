"""A study: schemes x protocols x networks, kept on disk as it goes, so that a run that broke off continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from teal.config import EvaluateConfig, seconds
from teal.errors import InputError
from teal.evaluation import Evaluation, Measured, Row
from teal.instance import Instance, failed_links, load_instance
from teal.network.traffic import Rows, spread
from teal.protocols import Cases, Protocol, parse_levels
from teal.reports.journal import Journal
from teal.reports.plots import plot_results
from teal.reports.record import NETWORKS, ROWS, TABLE, UTILISATION, Network, Place, Record
from teal.reports.report import write_report
from teal.reports.results import describe_machine, from_text, write_csv, write_manifest
from teal.schemes import Scheme, make_scheme
from teal.storage import atomic_file, check_out_folder, content_key, model_folder

JOURNAL, MANIFEST, PLOT, REPORT = "journal.jsonl", "manifest.json", "results.png", "report.html"
_INTERVAL = 300  # seconds, of traffic that does not say
FILES = (JOURNAL, ROWS, TABLE, UTILISATION, NETWORKS, MANIFEST, PLOT, REPORT)


class Study:
    """All that one ``teal evaluate`` does.

    Args:
        config: the settings.
        say: is told what was assumed and found.

    Raises:
        InputError: a fault in the settings, or results in OUT that nobody allowed to replace; nothing is written then.
    """

    def __init__(self, config: EvaluateConfig, say: Callable[[str], None] = lambda _: None) -> None:
        self._config, self._say = config, say
        self._levels = {
            Protocol.FAILURES: parse_levels("--failures", config.failures, counted=True),
            Protocol.NOISE: parse_levels("--noise", config.noise),
            Protocol.SPATIAL: parse_levels("--spatial", config.spatial, shares=True),
            Protocol.SCALE: parse_levels("--scale", config.scale),
        }
        self._journal: Journal | None = None
        if config.resume:
            self._journal = Journal(config.out / JOURNAL, config, resume=True)
            self._journal.add("machine", describe_machine())
        else:
            check_out_folder(config.out, FILES, overwrite=config.overwrite, hint="--resume or --overwrite")

    def run(self) -> Record:
        """Evaluate what is missing, then write results and report; if it breaks off, what is there is kept."""
        schemes = self._schemes()  # of all networks, before anything slow
        networks = self._networks()
        try:
            for number, (instance, cases) in networks.items():
                self._network(number, instance, cases, schemes[number])
        except BaseException:
            rows = self._record().rows if self._journal is not None else []
            if rows:
                with atomic_file(self._config.out / ROWS) as temporary:
                    write_csv(temporary, rows)
            raise
        assert self._journal is not None
        record = self._record()
        self._publish(record)
        return record

    def _schemes(self) -> list[dict[str, Scheme]]:
        """Of each network.  One that cannot be made for some of them, for want of a model, fails its rows there."""
        found: list[dict[str, Scheme]] = []
        for model in self._config.models():
            found.append({})
            for name in self._config.scheme or default_schemes(model):
                try:
                    found[-1][name] = make_scheme(name, model)
                except InputError as error:
                    found[-1][name] = _Unavailable(error)
        for name in {name for schemes in found for name in schemes}:
            made = [schemes[name] for schemes in found if name in schemes]
            if all(isinstance(scheme, _Unavailable) for scheme in made):
                raise made[0].error  # type: ignore[attr-defined]
        return found

    def _networks(self) -> dict[int, tuple[Instance, Cases]]:
        """What is not complete yet: all of it loaded, so that no fault shows after hours of measuring."""
        complete = {entry["network"] for entry in self._entries("complete")}
        known = {entry["network"]: entry for entry in self._entries("network")}
        found, names = {}, [(entry["topology"], entry["traffic"]) for entry in known.values()]
        for number, config in enumerate(self._config.instances()):
            if number in complete:
                continue
            instance = load_instance(config, self._say)
            if number in known:
                if known[number]["content"] != self._content(instance):
                    expected = "the topology, traffic and paths of the run that broke off"
                    raise InputError(config.topology, "", expected, "others")
            else:
                name = instance.topology.name, instance.traffic.name
                if name in names:
                    raise InputError("--topology", "", "each network and traffic once", " with ".join(name) + " twice")
                names.append(name)
            found[number] = instance, self._cases(instance)
            self._interval(instance)
        return found

    def _network(self, number: int, instance: Instance, cases: Cases, schemes: dict[str, Scheme]) -> None:
        done = {
            entry["key"]: [from_text(Row, row) for row in entry["rows"]]
            for entry in self._entries("case")
            if entry["network"] == number
        }
        told = {entry["scheme"]: entry["reason"] for entry in self._entries("left_out") if entry["network"] == number}
        described = any(entry["network"] == number for entry in self._entries("network"))
        evaluation = Evaluation(
            instance,
            schemes,
            time_limit=seconds(self._config.time_limit, "--time-limit"),
            interval_s=self._interval(instance),
            strict=len(self._config.topology) == 1,
            say=self._say,
            left_out=dict(told),
        )
        with _closing(evaluation.run(cases, done)) as found:
            for measured in found:
                if not described:
                    network = Network.of(instance.topology, instance.traffic.name, self._content(instance))
                    self._add("network", {"network": number, **network.to_json()})
                    described = True
                for scheme in evaluation.left_out.keys() - told.keys():
                    told[scheme] = evaluation.left_out[scheme]
                    self._add("left_out", {"network": number, "scheme": scheme, "reason": told[scheme]})
                self._add("case", {"network": number, **_entry(measured)})
        self._add("complete", {"network": number})

    def _interval(self, instance: Instance) -> float:
        """Seconds of an interval online; 0 if nobody asks for it."""
        config, usual = self._config, instance.traffic.interval_s or _INTERVAL
        if not config.online:
            return 0.0
        if not instance.objective.maximises_value:
            raise InputError("--online", "objective", "one that maximises flow", instance.objective.name.value)
        return seconds(config.interval, "--interval") if config.interval else float(usual)

    def _content(self, instance: Instance) -> str:
        """What rows of two runs must share to stand in one table."""
        config = self._config
        return content_key(
            instance.topology.content_key(), instance.traffic.content_key(), instance.paths.key, instance.objective,
            config.fail, config.seed,
        )  # fmt: skip

    def _cases(self, instance: Instance) -> Cases:
        config, topology = self._config, instance.topology
        if config.fail:
            failed = failed_links(topology, config.fail)
            self._say("failed: " + ", ".join(topology.link_name(link) for link in failed))
            topology = topology.with_failed_links(failed)
        rows = rows_of(instance, config.split)
        rows = rows[: config.limit or None] if config.online else spread(rows, config.limit)
        return Cases(topology, instance.traffic, rows, self._levels, config.draws, config.seed)

    def _entries(self, kind: str) -> Iterable[dict[str, Any]]:
        return () if self._journal is None else self._journal.of(kind)

    def _add(self, kind: str, entry: dict[str, Any]) -> None:
        if self._journal is None:  # only now: until the first case is measured, a fault leaves nothing behind
            for name in FILES:
                (self._config.out / name).unlink(missing_ok=True)
            self._journal = Journal(self._config.out / JOURNAL, self._config, resume=False)
        self._journal.add(kind, entry)

    def _record(self) -> Record:
        rows: list[Row] = []
        utilisation = {}
        for entry in self._entries("case"):
            own = [from_text(Row, row) for row in entry["rows"]]
            rows += own
            for row in own:
                if row.scheme in entry["utilisation"] and row.protocol != Protocol.ONLINE:
                    utilisation[Place.of(row)] = np.array(entry["utilisation"][row.scheme], np.float32)
        return Record(rows, [Network.from_json(entry) for entry in self._entries("network")], utilisation)

    def _publish(self, record: Record) -> None:
        assert self._journal is not None
        out = self._config.out
        record.save(out)
        with atomic_file(out / MANIFEST) as temporary:
            parts = [self._journal.first["machine"], *self._journal.of("machine")]
            write_manifest(temporary, self._config, parts)
        self._journal.remove()  # what is measured is safe, whatever becomes of its pictures
        with atomic_file(out / PLOT) as temporary:
            plot_results(temporary, record.rows)
        with atomic_file(out / REPORT) as temporary:
            write_report(temporary, record)


def default_schemes(model: Path | None) -> tuple[str, ...]:
    """What is set beside LP-all if nobody says: the model for any network, and a network's own if it was given."""
    if model is None:
        return "price-gnn", "lp-all"
    from teal.learning.checkpoint import is_price_model

    return ("price-gnn", "lp-all") if is_price_model(model_folder(model)) else ("teal", "price-gnn", "lp-all")


def rows_of(instance: Instance, split: str) -> Rows:
    """Rows of ``train``, ``validation``, ``test`` or ``all``."""
    everything: Rows = np.arange(instance.traffic.num_matrices)
    return everything if split == "all" else getattr(instance.split, split)


class _Unavailable:
    """A scheme that could not be made for one of several networks."""

    def __init__(self, error: InputError) -> None:
        self.error = error

    def solve(self, problem: object) -> Any:
        """Say why."""
        raise self.error


def _entry(measured: Measured) -> dict[str, Any]:
    return {
        "key": measured.key,
        "rows": [vars(row) for row in measured.rows],
        "utilisation": {name: [round(float(u), 4) for u in shares] for name, shares in measured.utilisation.items()},
    }


@contextmanager
def _closing(found: Iterator[Measured]) -> Iterator[Iterator[Measured]]:
    """Leave the progress bar on a line of its own, whatever happens."""
    try:
        yield found
    finally:
        found.close()  # type: ignore[attr-defined]
