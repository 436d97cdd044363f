"""`teal evaluate`: schemes x protocols x networks, stored on disk as they go, so that an
interrupted run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from teal.app.command import EXIT_FAILED, EXIT_OK, Notify, Outcome
from teal.app.instance import Instance, load_instance
from teal.app.run_files import (
    JOURNAL,
    RESUME_HINT,
    Journal,
    describe_machine,
    write_files,
    write_manifest,
)
from teal.app.warm_up import compile_first
from teal.errors import InputError
from teal.evaluation.cases import Cases
from teal.evaluation.intervals import DIFFERENCES, SUMMARY
from teal.evaluation.race import race_outcome
from teal.evaluation.record import NETWORKS, ROWS, TABLE, UTILISATION, Record
from teal.evaluation.report import PLOT, REPORT, report_files
from teal.evaluation.settings import EvaluateConfig
from teal.evaluation.study import Study, chosen_schemes, schemes_of
from teal.evaluation.table import summaries_of, summary_tables
from teal.formats.rows import write_csv
from teal.network import Topology
from teal.runtime.storage import check_out_folder, remove_files

MANIFEST = "manifest.json"
FILES = (JOURNAL, ROWS, TABLE, UTILISATION, NETWORKS, MANIFEST, SUMMARY, DIFFERENCES, PLOT, REPORT)


class _LateJournal:
    """The journal of a run, which begins with the first entry: a fault before it leaves OUT
    unchanged.

    Args:
        config: the settings.

    Raises:
        InputError: results in OUT that must not be replaced, or nothing that could be resumed.
    """

    def __init__(self, config: EvaluateConfig) -> None:
        self._config = config
        self.journal: Journal | None = None
        if config.resume:
            self.journal = Journal(config.out / JOURNAL, config, resume=True)
            self.journal.add("machine", describe_machine())
        else:
            check_out_folder(config.out, FILES, overwrite=config.overwrite, hint=RESUME_HINT)

    def entries(self, kind: str) -> Iterator[dict[str, Any]]:
        """The entries of a kind (:meth:`teal.app.run_files.Entries.entries`)."""
        return iter(()) if self.journal is None else self.journal.entries(kind)

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Append an entry (:meth:`teal.app.run_files.Entries.add`)."""
        if self.journal is None:
            remove_files(self._config.out, FILES)
            self.journal = Journal(self._config.out / JOURNAL, self._config, resume=False)
        self.journal.add(kind, entry)


def run_evaluate(config: EvaluateConfig, notify: Callable[[str], None] = lambda _: None) -> Record:
    """Evaluate what is missing, then write results and report; an interruption writes the rows so
    far.

    Raises:
        InputError: invalid settings, or results in OUT that must not be replaced; nothing is
            written then.
    """
    entries = _LateJournal(config)
    study = Study(config, entries, notify)
    # The schemes of all networks, so that a fault shows before anything slow.
    schemes = schemes_of(config, config.models_by_network(), notify)
    networks = _networks(config, study, entries, notify)
    strict = len(config.topology) == 1
    try:
        for number, (instance, cases) in networks.items():
            study.measure(number, instance, cases, schemes[number], strict=strict)
    except BaseException:
        rows = study.record().rows
        if rows:
            write_files(config.out, {ROWS: partial(write_csv, rows=rows)})
        raise
    record = study.record()
    _publish(config, record, entries.journal)
    return record


def _networks(
    config: EvaluateConfig, study: Study, entries: _LateJournal, notify: Callable[[str], None]
) -> dict[int, tuple[Instance, Cases]]:
    """The networks that are not complete, all loaded, so that no fault shows after hours of
    measuring.
    """
    # Networks of an interrupted run.
    complete = {entry["network"] for entry in entries.entries("complete")}
    entry_by_network = {entry["network"]: entry for entry in entries.entries("network")}
    names = [(entry["topology"], entry["traffic"]) for entry in entry_by_network.values()]
    networks = {}

    def compile_kernels(topology: Topology) -> None:
        """Compile for the schemes, in several processes, before the first of them is called."""
        pairs = topology.num_nodes * (topology.num_nodes - 1)
        compile_first(notify, pairs, chosen_schemes(config))

    # Load each network that is not complete.
    for number, of_network in enumerate(config.instances()):
        if number in complete:
            continue
        loaded = load_instance(of_network, notify, on_topology=compile_kernels)
        instance, cases = study.prepared(loaded)
        # The network must be that of the interrupted run, or a new one.
        if number in entry_by_network:
            if entry_by_network[number]["content"] != study.content(instance):
                expected = "the topology, traffic and paths of the interrupted run"
                raise InputError(of_network.topology, "", expected, "a different one")
        else:
            name = instance.topology.name, instance.traffic.name
            if name in names:
                expected = "each network and traffic once"
                raise InputError("--topology", "", expected, " with ".join(name) + " twice")
            names.append(name)
        networks[number] = instance, cases
    return networks


def _publish(config: EvaluateConfig, record: Record, journal: Journal | None) -> None:
    """Write results and report, and end the journal."""
    assert journal is not None
    record.save_rows(config.out)
    machines = [journal.header["machine"], *journal.entries("machine")]
    manifest = partial(write_manifest, settings=config, machines=machines)
    write_files(config.out, {MANIFEST: manifest})
    journal.remove()  # the results are stored, whether or not plot and report succeed
    write_files(config.out, report_files(record))


def evaluate_outcome(config: EvaluateConfig, notify: Notify) -> Outcome:
    """`teal evaluate`: the cases of the protocols, or a race."""
    if config.race:
        return race_outcome(config, notify)
    rows = run_evaluate(config, notify).rows
    return Outcome(
        tables=summary_tables(rows, wide=config.wide),
        wide=config.wide,
        written=(
            f"{config.out / REPORT}: open it in a browser; the rows are in {config.out}/results.csv"
        ),
        data=lambda: {"results": summaries_of(rows)},
        exit_code=EXIT_OK if any(row.usable for row in rows) else EXIT_FAILED,
    )
