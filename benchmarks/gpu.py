"""Check and time the GPU backend in one call of a few minutes; print a table and write a CSV file.

    python benchmarks/gpu.py --data FOLDER --out gpu.csv

FOLDER holds UsCarrier.json, Kdl.json, ASN2k.json and geant.xml (data/README.md says where to get
them).  Needs torch with a GPU, torch-geometric, numba with numba-cuda, and their dependencies; no
solver, no Ray.  PDLP is timed for comparison where mpax with jax, or ortools, is installed.  Times
are medians by device events after warm-up; those marked "wall" include the host and end with a
synchronisation.  If a part fails, its error is printed and the other parts run.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import functools
import gc
import importlib.metadata
import itertools
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from public_data import published

import teal
from teal.pathops import make_path_ops
from teal.runtime import cuda
from teal.solvers.pdhg.cuda.engine import CudaEngine
from teal.solvers.pdhg.dense import bytes_needed
from teal.solvers.pdhg.plain import PlainEngine

NETWORKS = {"UsCarrier": "UsCarrier.json", "Kdl": "Kdl.json", "ASN": "ASN2k.json"}
LOAD = 6  # load of the gravity traffic, as in benchmarks/engine.py
DEVICE = torch.device("cuda")
# Settings of `teal train` whose steps are timed: first the small FlowGNN of earlier figures, then
# the defaults, the learner COMA and the model PriceGNN.
TRAININGS: tuple[dict[str, Any], ...] = (
    {"from_": "none:form=feedback,layers=6,width=8"},
    {},
    {"learner": "coma"},
    {"model": "price"},
)
# Part, measure, value, unit, and the value that is aimed at (empty for none).
Row = tuple[str, str, float, str, str]


class Report:
    """Collects the measured rows, and runs the parts of the benchmark until its time is up.

    Args:
        seconds: time after which no further part starts, s.
    """

    def __init__(self, seconds: float) -> None:
        self.rows: list[Row] = []
        self._stop = time.perf_counter() + seconds

    def add(self, part: str, measure: str, value: float, unit: str, aim: str = "") -> None:
        """Add a row and print it at once, so that an interrupted run has printed it.

        Args:
            part: group of the measurement, such as "cold".
            measure: description of the measured quantity.
            value: measured value, in ``unit``.
            unit: unit of ``value``; empty for a ratio or a count.
            aim: value that the project aims at, as text; empty for none.
        """
        self.rows.append((part, measure, value, unit, aim))
        print(f"{part:10s} {measure:58s} {value:12.5g} {unit:6s} {aim}", flush=True)

    def run(self, name: str, work: Callable[[], None]) -> None:
        """Run one part of the benchmark unless the time is up; record a failure as a row.

        Args:
            name: name of the part in the output.
            work: measures, and adds its rows to this report.
        """
        if time.perf_counter() > self._stop:
            print(f"{name}: left out, the time is up", flush=True)
            return
        begin = time.perf_counter()
        try:
            work()
        except Exception:  # the other parts run even if one fails
            traceback.print_exc()
            self.add(name, "FAILED (see above)", float("nan"), "")
        # Free the memory of this part.  After a failure on the device these calls may fail, too.
        with contextlib.suppress(RuntimeError):
            gc.collect()
            torch.cuda.empty_cache()
        print(f"# {name}: {time.perf_counter() - begin:.1f} s", flush=True)


def device_time_ms(call: Callable[[], object], repeats: int = 30, warm_up: int = 5) -> float:
    """Return the median time that a call takes on the device, ms, measured by device events.

    Args:
        call: what is timed.
        repeats: number of timed calls.
        warm_up: number of calls before these.
    """
    for _ in range(warm_up):
        call()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def wall_time_ms(call: Callable[[], object], repeats: int = 7, warm_up: int = 2) -> float:
    """Return the median wall-clock time of a call in ms, host and device together.

    Args:
        call: what is timed.
        repeats: number of timed calls.
        warm_up: number of calls before these.
    """
    times = []
    for repeat in range(warm_up + repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if repeat >= warm_up:
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Return the GPU's memory bandwidth, measured by a copy of 2 GiB: bytes read
    and written per s.
    """
    # 2^29 float32 numbers.
    a = torch.rand(1 << 29, device=DEVICE)
    b = torch.empty_like(a)
    return 2 * a.numel() * 4 / (device_time_ms(lambda: b.copy_(a), 10) / 1e3)


# Cached, since the search for the paths of UsCarrier takes longer than a part of the benchmark.
@functools.cache
def load_with_traffic(data: Path, name: str, matrices: int, device: str) -> tuple[Any, Any]:
    """Return the total-flow problem of consecutive gravity matrices of a network, and its traffic.

    Args:
        data: folder of the published files.
        name: key of :data:`NETWORKS`.
        matrices: number of matrices, the batch size of the problem.
        device: torch device of the problem.

    Returns:
        a :class:`teal.Problem` and a :class:`teal.TrafficMatrices`.
    """
    topology = teal.load_topology(str(published(data, NETWORKS[name])))
    traffic = teal.load_traffic(f"gravity:seed=0,count={matrices},load={LOAD}", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    problem = teal.Problem.create(
        topology, paths, teal.Objective(), traffic.read(slice(None)), device=device
    )
    return problem, traffic


def load(data: Path, name: str, matrices: int, device: str = "cuda") -> Any:
    """Return the total-flow problem of ``matrices`` consecutive gravity matrices of a network."""
    return load_with_traffic(data, name, matrices, device)[0]


def bytes_of_iteration(paths: Any, batch: int, real_bytes: int = 4) -> float:
    """Return the fewest bytes that one PDHG iteration must move, with each input read and each
    output written once.

    Per matrix: the current splits read and written, the splits of the last restart (anchor) read,
    the demands read, the flow of each trie node written and read.  Once for all matrices: indices
    of the trie, one factor per demand, ends and counts of paths, and the trie nodes of each link.

    Args:
        paths: path set.
        batch: number of matrices.
        real_bytes: size of a floating-point number, bytes.
    """
    num_paths = paths.packed.num_paths
    nodes = paths.trie.num_nodes
    demands = paths.num_demands
    index_bytes = paths.levels.parent.itemsize
    # Current and new splits and anchor of each path; demands; flow of trie nodes, twice.
    per_matrix = real_bytes * (3 * num_paths + demands + 2 * nodes)
    shared = index_bytes * (3 * nodes + num_paths) + nodes + 4 * nodes + demands * (1 + real_bytes)
    return float(batch * per_matrix + shared)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest absolute difference of two tensors of one shape, relative to the largest
    absolute expected value.
    """
    expected = expected.to(actual.device, torch.float64)
    return float(
        (actual.to(torch.float64) - expected).abs().max() / expected.abs().max().clamp(min=1e-300)
    )


def check_path_operations(report: Report, problem: Any, name: str) -> None:
    """Report the errors of the GPU's path operations in float32 and float64, and whether
    ``link_sum`` repeats bit by bit.

    The reference is the torch backend, which works level by level of the path trie, in float64, on
    random inputs of 2 matrices with 3 features.

    Args:
        report: receives the rows.
        problem: problem on the GPU, for its network and paths.
        name: name of the network in the rows.
    """
    ops = problem.ops
    plain = make_path_ops(problem.paths, DEVICE, "torch")
    # Random inputs, and the results of the reference.
    generator = torch.Generator(DEVICE).manual_seed(0)
    links = torch.rand(
        2, problem.topology.num_links, 3, generator=generator, device=DEVICE, dtype=torch.float64
    )
    flows = torch.rand(
        2, *ops.mask.shape, 3, generator=generator, device=DEVICE, dtype=torch.float64
    )
    sums = plain.path_sum(links)
    loads = plain.link_sum(flows)
    maxima = plain.path_max(links[..., 0])[0]
    # Errors of the GPU's operations in both types.
    for dtype in (torch.float32, torch.float64):
        link_values = links.to(dtype)
        path_values = flows.to(dtype)
        dtype_name = str(dtype)[6:]
        report.add(
            "check",
            f"{name} path_sum {dtype_name}, error against float64",
            relative_error(ops.path_sum(link_values), sums),
            "",
        )
        report.add(
            "check",
            f"{name} link_sum {dtype_name}",
            relative_error(ops.link_sum(path_values), loads),
            "",
        )
        report.add(
            "check",
            f"{name} path_max {dtype_name}",
            relative_error(ops.path_max(link_values[..., 0])[0], maxima),
            "",
        )
        repeats = torch.equal(ops.link_sum(path_values), ops.link_sum(path_values))
        report.add("check", f"{name} link_sum {dtype_name} repeats bit by bit", float(repeats), "")


def check_engine(report: Report, problem: Any, name: str) -> None:
    """Report the largest relative difference between the dual bounds of the GPU engine and those
    of the reference engine, over 25 iterations with restarts.

    Args:
        report: receives the rows, one for float64 and one for float32.
        problem: problem on the GPU.
        name: name of the network in the rows.
    """
    reference = dataclasses.replace(problem, ops=make_path_ops(problem.paths, DEVICE, "torch"))
    for dtype in (torch.float64, torch.float32):
        engine = CudaEngine(problem, None, dtype)
        plain = PlainEngine(reference, None, torch.float64)
        # 25 iterations in five calls; each call gives the bounds at its end.
        error = max(
            relative_error(engine.advance(count), plain.advance(count))
            for count in (1, 1, 3, 10, 10)
        )
        report.add("check", f"{name} bounds of 25 iterations, {str(dtype)[6:]}", error, "")


def time_path_operations(report: Report, problem: Any, name: str) -> None:
    """Report the device times of path_sum, link_sum and path_max for one matrix and one feature,
    and of path_sum in torch's level-by-level backend.

    Args:
        report: receives the rows.
        problem: problem on the GPU, for its network and paths.
        name: name of the network in the rows.
    """
    ops = problem.ops
    links = torch.rand(1, problem.topology.num_links, device=DEVICE)
    flows = torch.rand(1, *ops.mask.shape, device=DEVICE)
    for operation, call in (
        ("path_sum", lambda: ops.path_sum(links)),
        ("link_sum", lambda: ops.link_sum(flows)),
        ("path_max", lambda: ops.path_max(links)),
    ):
        report.add(
            "pathops", f"{name} {operation}, float32, one feature", device_time_ms(call), "ms"
        )
    plain = make_path_ops(problem.paths, DEVICE, "torch")
    report.add(
        "pathops",
        f"{name} path_sum, torch level by level",
        device_time_ms(lambda: plain.path_sum(links), 5),
        "ms",
    )


def time_iteration(report: Report, problem: Any, name: str, bandwidth: float, aim: str) -> None:
    """Report the time of a PDHG iteration in a CUDA graph, per matrix, and the memory it needs.

    The time is also given relative to the least time that the memory bandwidth allows; the peak of
    torch's memory beside the estimate of :func:`bytes_needed`.

    Args:
        report: receives the rows.
        problem: problem on the GPU.
        name: name of the network in the rows.
        bandwidth: memory bandwidth of the GPU, bytes per s.
        aim: time per matrix that is aimed at, as text.
    """
    allocated_before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    engine = CudaEngine(problem, None, torch.float32)
    batch = problem.batch
    # The first calls record the CUDA graphs of iteration and check; time replays of 20 iterations.
    engine.advance(2)
    engine.check(1)
    buffers = engine._recorded.buffers
    time_ms = device_time_ms(lambda: buffers.advance(20)) / 20
    report.add("iteration", f"{name}, batch {batch}, per matrix", time_ms / batch, "ms", aim)
    min_time_ms = 1e3 * bytes_of_iteration(problem.paths, batch) / bandwidth
    report.add(
        "iteration",
        f"{name}, batch {batch}, share of what the bandwidth allows",
        min_time_ms / time_ms,
        "",
        "0.5",
    )
    expected = batch * bytes_needed(problem.paths, torch.float32)
    report.add("memory", f"{name}, batch {batch}, estimated", expected / 2**30, "GiB")
    peak = torch.cuda.max_memory_allocated() - allocated_before
    report.add("memory", f"{name}, batch {batch}, peak of torch", peak / 2**30, "GiB")


def time_cold_solves(report: Report, problem: Any, name: str, aim: str) -> None:
    """Report wall times, iterations and gaps of cold solves to 5%, 1% and 0.1%, and the time of a
    warm-started solve to 1%.

    The problem is on the device and the kernels and graphs are made before the timing.

    Args:
        report: receives the rows.
        problem: problem of one matrix on the GPU.
        name: name of the network in the rows.
        aim: time of the cold solve to 1% that is aimed at, as text.
    """
    for gap in (0.05, 0.01, 0.001):
        solution = teal.solve(problem, gap=gap)
        time_ms = wall_time_ms(lambda gap=gap: teal.solve(problem, gap=gap))  # type: ignore[misc]
        report.add("cold", f"{name} to {gap:g} (wall)", time_ms, "ms", aim if gap == 0.01 else "")
        report.add("cold", f"{name} to {gap:g}: iterations", solution.iterations, "")
        report.add("cold", f"{name} to {gap:g}: certified gap", float(solution.gap.max()), "")
    # Warm start from the solution for the unchanged demands.
    changed_problem = problem.with_demand(
        problem.demand * torch.exp(0.1 * torch.randn_like(problem.demand))
    )
    earlier_solution = teal.solve(problem, gap=0.005)
    time_ms = wall_time_ms(
        lambda: teal.solve(changed_problem, gap=0.01, warm_start=earlier_solution)
    )
    report.add("warm", f"{name}, demands x exp(0.1 noise), to 0.01 (wall)", time_ms, "ms")


def time_cpu_solves(report: Report, problem: Any, name: str) -> None:
    """Report wall times of cold solves to 1% and 0.1% on all cores of the machine's CPU.

    Args:
        report: receives the rows.
        problem: problem of one matrix on the CPU.
        name: name of the network in the rows.
    """
    for gap in (0.01, 0.001):
        time_ms = wall_time_ms(lambda gap=gap: teal.solve(problem, gap=gap))  # type: ignore[misc]
        report.add(
            "cpu", f"{name} to {gap:g} (wall), {torch.get_num_threads()} threads", time_ms, "ms"
        )


def time_model_passes(report: Report, problem: Any, name: str, aim: str) -> None:
    """Report wall times of the forward passes of three models, and of the whole scheme ``teal``.

    A pass is a CUDA graph; its time includes copying the problem in and the splits out.  The scheme
    adds ADMM, the projection onto the capacities and the bounds.

    Args:
        report: receives the rows.
        problem: problem of one matrix on the GPU.
        name: name of the network in the rows.
        aim: time of a pass that is aimed at, as text.
    """
    from teal.nn.checkpoint import new_flow_model
    from teal.nn.flow_gnn_config import FEEDBACK, FlowGnnConfig
    from teal.schemes.flow_gnn import FlowGnnScheme

    fixed_paths_scheme = FlowGnnScheme(
        new_flow_model(FlowGnnConfig(problem.paths.num_paths, form=FEEDBACK))
    )
    fixed_paths_scheme.model.to(DEVICE)
    universal_scheme: Any = teal.make_scheme("teal")
    price_scheme: Any = teal.make_scheme("price-gnn")
    for kind, scheme in (
        ("FlowGNN of K", fixed_paths_scheme),
        ("FlowGNN", universal_scheme),
        ("PriceGNN", price_scheme),
    ):
        time_ms = wall_time_ms(lambda scheme=scheme: scheme.start(problem), 20)  # type: ignore[misc]
        report.add("models", f"recorded pass of {kind}, {name} (wall)", time_ms, "ms", aim)
    time_ms = wall_time_ms(lambda: universal_scheme.solve(problem), 20)
    report.add("models", f"scheme teal with ADMM, {name} (wall)", time_ms, "ms")


def time_bulk_solve(
    report: Report, topology: teal.Topology, device: str, aim: str = "", matrices: int = 1000
) -> None:
    """Report how many matrices per second one solve certifies to 1%, and the largest gap of all.

    Args:
        report: receives the rows.
        topology: network of the gravity traffic.
        device: "cuda" or "cpu".
        aim: rate that is aimed at, as text.
        matrices: number of matrices of the solve.
    """
    traffic = teal.load_traffic(f"gravity:seed=0,count={matrices},load={LOAD}", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    problem = teal.Problem.create(
        topology, paths, teal.Objective(), traffic.read(slice(None)), device=device
    )
    # The first solves compile kernels and record CUDA graphs.
    for _ in range(2):
        teal.solve(problem, gap=0.01)
    begin = time.perf_counter()
    result = teal.solve(problem, gap=0.01)
    # The transfer to the host waits until the device has finished.
    max_gap = float(result.gap.max())
    rate = matrices / (time.perf_counter() - begin)
    where = "GPU" if device == "cuda" else f"{torch.get_num_threads()} threads"
    name = f"{topology.name}, {matrices} matrices to 0.01, {where}"
    report.add("bulk", f"{name} (wall)", rate, "1/s", aim)
    report.add("bulk", f"{name}: widest gap", max_gap, "")


def time_training_step(
    report: Report, data: Path, name: str, settings: dict[str, Any], aim: str
) -> None:
    """Report the wall time and peak memory of a step of `teal train` with batches of 20 matrices.

    Args:
        report: receives the rows.
        data: folder of the published files.
        name: key of :data:`NETWORKS`.
        settings: settings of the training that differ from the defaults.
        aim: time of a step that is aimed at, as text.
    """
    from teal_study.learning.settings import TrainConfig
    from teal_study.learning.train import Trainer

    problem, traffic = load_with_traffic(data, name, 64, "cuda")
    nowhere = {"topology": "-", "traffic": "-", "out": Path("never-written")}
    config = TrainConfig(**nowhere, batch_size=20, **settings)  # type: ignore[arg-type]
    allocated_before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(problem.row(0), traffic, traffic.split(), config)

    def step() -> None:
        trainer.one_step()
        trainer.state.step += 1

    # Fix the number of rounds of PriceGNN, which is random in training: every new number would
    # record another CUDA graph.
    rounds = "teal_study.learning.pretrain_price_gnn.random_rounds"
    with patch(rounds, lambda _, usual: usual):
        time_ms = wall_time_ms(step, 12, warm_up=6)
    peak = torch.cuda.max_memory_allocated() - allocated_before
    settings_text = (
        ", ".join(f"{key.strip('_')} {value}" for key, value in settings.items()) or "defaults"
    )
    report.add("training", f"step, {name}, batch 20, {settings_text} (wall)", time_ms, "ms", aim)
    report.add("training", f"step, {name}, batch 20, {settings_text}: peak", peak / 2**30, "GiB")


def time_pdlp_peers(report: Report, data: Path, name: str, accuracy: float = 1e-3) -> None:
    """Report the time and gap of two implementations of PDLP: MPAX on the GPU, OR-Tools on the CPU.

    An implementation that is not installed is skipped.

    Args:
        report: receives the rows.
        data: folder of the published files.
        name: key of :data:`NETWORKS`.
        accuracy: relative tolerance of PDLP.
    """
    from gpu_peer import Mpax

    from baselines.pdlp import Pdlp

    problem = load(data, name, 1, "cpu")
    bound = float(teal.solve(problem, gap=1e-4).bound[0])
    for kind, solver in (("MPAX", Mpax(accuracy)), ("OR-Tools", Pdlp(accuracy))):
        try:
            result = solver.solve(problem)
        except teal.TealError as error:
            print(f"# {error}", flush=True)
            continue
        time_ms = 1e3 * result.solve_s[0]
        gap = 1 - float(problem.value(result.splits)[0]) / bound
        report.add("peers", f"{name}, PDLP of {kind}, accuracy {accuracy:g}", time_ms, "ms")
        report.add("peers", f"{name}, PDLP of {kind}: gap of what it carries", gap, "")


class Problems:
    """Cache of the problems of the published networks on the GPU.

    Args:
        data: folder of the published files.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        # Problem of each network name and number of matrices.
        self._loaded: dict[tuple[str, int], Any] = {}

    def get(self, name: str, batch: int = 1) -> Any:
        """Return the problem of a network with ``batch`` matrices.

        If the problem of one matrix is cached, the batch repeats that matrix with log-normal noise;
        otherwise consecutive matrices are loaded.

        Args:
            name: key of :data:`NETWORKS`.
            batch: number of matrices.
        """
        key = name, batch
        if key not in self._loaded:
            single = self._loaded.get((name, 1))
            if single is None:
                self._loaded[key] = load(self._data, name, batch)
            else:
                shape = batch, single.demand.shape[1]
                noise = torch.exp(0.3 * torch.randn(shape, device=DEVICE, dtype=torch.float64))
                self._loaded[key] = single.with_demand(single.demand * noise)
        return self._loaded[key]

    def drop(self, name: str, batch: int) -> None:
        """Remove a problem from the cache, so that its memory on the GPU can be freed."""
        self._loaded.pop((name, batch), None)


# Name of a part of the benchmark, and the function that runs it.
Part = tuple[str, Callable[[], None]]


def network_parts(
    report: Report, problems: Problems, data: Path, bandwidth: float
) -> Iterator[Part]:
    """Yield name and function of each measurement on UsCarrier, Kdl and ASN, the most important
    first.

    Args:
        report: receives the rows.
        problems: cache of the problems on the GPU.
        data: folder of the published files.
        bandwidth: memory bandwidth of the GPU, bytes per s.
    """

    def iterate(name: str, batch: int, aim: str) -> Callable[[], None]:
        return lambda: time_iteration(report, problems.get(name, batch), name, bandwidth, aim)

    def solve_cold(name: str, aim: str) -> Callable[[], None]:
        return lambda: time_cold_solves(report, problems.get(name), name, aim)

    def compare(name: str) -> Callable[[], None]:
        return lambda: check_path_operations(report, problems.get(name), name)

    def compare_engine(name: str) -> Callable[[], None]:
        return lambda: check_engine(report, problems.get(name), name)

    def solve_on_cpu(name: str) -> Callable[[], None]:
        return lambda: time_cpu_solves(report, load(data, name, 1, "cpu"), name)

    # Aims are in ms: the time that a part must reach, and the time to aim at.
    yield "check UsCarrier", compare("UsCarrier")
    yield "check engine", compare_engine("UsCarrier")
    yield "check Kdl", compare("Kdl")
    yield "Kdl iteration", iterate("Kdl", 1, "must 0.3, aim 0.08")
    yield "Kdl cold", solve_cold("Kdl", "must 7, aim 5")
    yield "Kdl batch", iterate("Kdl", 32, "must 0.1, aim 0.03")
    yield "passes", lambda: time_model_passes(report, problems.get("Kdl"), "Kdl", "must 4, aim 2")
    # Free the batch for the trainings.
    problems.drop("Kdl", 32)
    for number, settings in enumerate(TRAININGS):
        yield (
            f"training {number}",
            functools.partial(
                time_training_step, report, data, "UsCarrier", settings, "must 15, aim 8"
            ),
        )
    yield "ASN iteration", iterate("ASN", 1, "must 1, aim 0.2")
    yield "ASN cold", solve_cold("ASN", "must 16, aim 10")
    yield "check Kdl engine", compare_engine("Kdl")
    yield "pathops Kdl", lambda: time_path_operations(report, problems.get("Kdl"), "Kdl")
    yield "UsCarrier", iterate("UsCarrier", 20, "")
    yield "UsCarrier cold", solve_cold("UsCarrier", "must 4, aim 2")
    yield "UsCarrier CPU", solve_on_cpu("UsCarrier")
    yield "Kdl CPU", solve_on_cpu("Kdl")
    yield "peers", lambda: time_pdlp_peers(report, data, "UsCarrier")
    yield "pathops ASN", lambda: time_path_operations(report, problems.get("ASN"), "ASN")


def bulk_parts(report: Report, data: Path) -> Iterator[Part]:
    """Yield name and function of each solve of 1000 matrices: B4 and GEANT on GPU and CPU,
    UsCarrier on the GPU only.

    Args:
        report: receives the rows.
        data: folder of the published files.
    """
    # Name: source of the topology, and the target on the GPU as text: "must" and the required
    # matrices per second.
    sources = {
        "B4": ("b4", ""),
        "GEANT": (str(published(data, "sndlib/geant.xml")), "must 20000"),
        "UsCarrier": (str(published(data, NETWORKS["UsCarrier"])), ""),
    }
    for name, (source, gpu_aim) in sources.items():
        for device in ("cuda", "cpu") if name != "UsCarrier" else ("cuda",):
            aim = gpu_aim if device == "cuda" else ""
            topology = teal.load_topology(source)
            yield (
                f"bulk {name}, {device}",
                functools.partial(time_bulk_solve, report, topology, device, aim),
            )


def main() -> None:
    """Run all parts of the benchmark on the GPU, then write their rows to the CSV file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the files that data/README.md names"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu.csv"), help="file of the rows")
    parser.add_argument(
        "--seconds", type=float, default=420, help="time after which no further part starts, s"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py: torch sees no GPU (torch.cuda.is_available() is false)")
    cuda.require()
    torch.manual_seed(0)
    # By default JAX, which runs MPAX, reserves most of the GPU's memory.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    report = Report(options.seconds)
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numba", "numba-cuda")
    )
    print(f"# {torch.cuda.get_device_name()}, {versions}", flush=True)
    bandwidth = copy_bandwidth()
    report.add("machine", "copy, read and written", bandwidth / 1e12, "TB/s")
    parts = network_parts(report, Problems(options.data), options.data, bandwidth)
    try:
        for name, work in itertools.chain(parts, bulk_parts(report, options.data)):
            report.run(name, work)
    finally:
        # Rows of the parts that ended are kept if a later one fails.
        with options.out.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("part", "what", "value", "unit", "aim"))
            writer.writerows(report.rows)
        print(options.out)


if __name__ == "__main__":
    main()
