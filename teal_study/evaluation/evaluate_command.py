"""``teal evaluate``: schemes x protocols x networks, stored in a journal case by case, so that an
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
from teal.formats.rows import write_csv
from teal.network import Topology
from teal.runtime.storage import check_out_folder, remove_files
from teal_study.evaluation.cases import Cases
from teal_study.evaluation.intervals import DIFFERENCES, SUMMARY
from teal_study.evaluation.race import race_outcome
from teal_study.evaluation.record import NETWORKS, ROWS, TABLE, UTILISATION, Record
from teal_study.evaluation.report import PLOT, REPORT, report_files
from teal_study.evaluation.settings import EvaluateConfig
from teal_study.evaluation.study import Study, chosen_schemes, schemes_of
from teal_study.evaluation.table import summaries_of, summary_tables

MANIFEST = "manifest.json"
FILES = (JOURNAL, ROWS, TABLE, UTILISATION, NETWORKS, MANIFEST, SUMMARY, DIFFERENCES, PLOT, REPORT)


class _LateJournal:
    """Journal of a run that is created with its first entry, so that an earlier error leaves OUT
    unchanged.

    Args:
        config: the settings.

    Raises:
        InputError: existing results in OUT without --overwrite, or no run to resume.
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
        """Yield the entries of a kind, such as case or network; none before the first entry."""
        return iter(()) if self.journal is None else self.journal.entries(kind)

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Append an entry; the first one removes earlier results from OUT.

        Args:
            kind: kind of the entry, such as case or network.
            entry: its JSON values.
        """
        if self.journal is None:
            remove_files(self._config.out, FILES)
            self.journal = Journal(self._config.out / JOURNAL, self._config, resume=False)
        self.journal.add(kind, entry)


def run_evaluate(config: EvaluateConfig, notify: Callable[[str], None] = lambda _: None) -> Record:
    """Evaluate the cases that an earlier run has not finished, write results and report, and return
    all results.

    An interruption or an error writes the rows so far.

    Args:
        config: the settings.
        notify: called with the progress.

    Raises:
        InputError: invalid settings, or existing results in OUT without --overwrite; nothing is
            written then.
    """
    entries = _LateJournal(config)
    study = Study(config, entries, notify)
    # Schemes and networks are loaded first, so that an error is raised before anything slow.
    schemes = schemes_of(config, config.models_by_network(), notify)
    networks = _networks(config, study, entries, notify)
    # With one network, an InputError of every scheme ends the run.
    strict = len(config.topology) == 1
    try:
        for network_index, (instance, cases) in networks.items():
            study.measure(network_index, instance, cases, schemes[network_index], strict=strict)
    except BaseException:
        rows = study.record().rows
        if rows:
            write_files(config.out, {ROWS: partial(write_csv, rows=rows)})
        raise
    record = study.record()
    _write_results(config, record, entries.journal)
    return record


def _networks(
    config: EvaluateConfig, study: Study, entries: _LateJournal, notify: Callable[[str], None]
) -> dict[int, tuple[Instance, Cases]]:
    """Load all networks that the journal does not record as complete, before any measurement, so
    that an invalid network is reported at once.

    Args:
        config: the settings.
        study: makes the cases.
        entries: journal of an interrupted run.
        notify: called with the progress.

    Returns:
        instance and cases by index of the network.

    Raises:
        InputError: an invalid network or traffic, one that differs from the interrupted run, or one
            that occurs twice.
    """
    # Networks of an interrupted run.
    complete_networks = {entry["network"] for entry in entries.entries("complete")}
    earlier_entries = {entry["network"]: entry for entry in entries.entries("network")}
    known_names = [(entry["topology"], entry["traffic"]) for entry in earlier_entries.values()]
    networks = {}

    def compile_kernels(topology: Topology) -> None:
        """Compile the kernels of the schemes for a network, in several processes, before their
        first call.
        """
        num_pairs = topology.num_nodes * (topology.num_nodes - 1)
        compile_first(notify, num_pairs, chosen_schemes(config))

    # Load each network that is not complete.
    for network_index, network_config in enumerate(config.instances()):
        if network_index in complete_networks:
            continue
        loaded = load_instance(network_config, notify, on_topology=compile_kernels)
        instance, cases = study.prepared(loaded)
        # The network must be that of the interrupted run, or a new one.
        if network_index in earlier_entries:
            if earlier_entries[network_index]["content"] != study.content(instance):
                fault = "topology, traffic or paths differ from those of the interrupted run"
                remedy = "restore them, or start again with --overwrite"
                raise InputError.invalid(network_config.topology, "", fault, remedy)
        else:
            name = instance.topology.name, instance.traffic.name
            if name in known_names:
                fault = f"{' with '.join(name)} occurs twice"
                raise InputError.invalid("--topology", "", fault, "list each network once")
            known_names.append(name)
        networks[network_index] = instance, cases
    return networks


def _write_results(config: EvaluateConfig, record: Record, journal: Journal | None) -> None:
    """Write results, manifest and report to OUT, and remove the journal.

    Args:
        config: the settings.
        record: all results.
        journal: journal of the run, which names the machines.
    """
    assert journal is not None
    record.save_rows(config.out)
    machines = [journal.header["machine"], *journal.entries("machine")]
    manifest = partial(write_manifest, settings=config, machines=machines)
    write_files(config.out, {MANIFEST: manifest})
    # The results are stored, even if plot or report fail.
    journal.remove()
    write_files(config.out, report_files(record))


def evaluate_outcome(config: EvaluateConfig, notify: Notify) -> Outcome:
    """Run ``teal evaluate``: the cases of the protocols, or a race; return its tables and files.

    Args:
        config: the settings.
        notify: called with the progress.
    """
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
