"""Cost model of the engines: predicted seconds to a target gap, fitted to measurements.

For each engine, kind of program and start, the logarithm of the seconds is a quadratic polynomial
of six features x: the logarithms of 1 + links that can bind, 1 + columns, 1 + updated entries of
the Schur complement (all three of the presolved program of the first matrix), of the scan size
(trie nodes and path slots) and of the batch, and the digits of the gap, -log10:

    log(seconds) = a + sum_i b_i x_i + sum_{i <= j} c_ij x_i x_j.

``cost_model.json`` has the coefficients, the range of each feature in the measurements, to which
features are clipped, and the other numbers of this module.  ``benchmarks/engine_choice.py``
measures and writes it.  A calibration (``teal warm-up --calibrate``,
:mod:`teal.solvers.calibration`) stores factors on the predicted seconds for one machine.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from pathlib import Path
from typing import Any, NamedTuple

import numba

from teal.problem import Problem
from teal.problem.sets import AtMostOne, Capped
from teal.runtime.kernel_fingerprint import processor
from teal.runtime.storage import atomic_file, cache_dir, content_key

PATH = Path(__file__).with_name("cost_model.json")
# Factors on predicted seconds, by factor_key.
Factors = dict[str, float]
FEATURES = ("log_rows", "log_columns", "log_updates", "log_scan", "log_batch", "digits")


class Features(NamedTuple):
    """Features of a program.

    Attributes:
        kind: "shed" (demand may be unserved), "carry" (all is served) or "utility" (concave).
        values: the values of FEATURES.
        scan: scan size of the path set.
        batch: number of matrices.
        has_bounds: whether columns have upper bounds.
        may_select: whether a warm-started interior-point search selects columns.
    """

    kind: str
    values: tuple[float, ...]
    scan: int
    batch: int
    has_bounds: bool
    may_select: bool


def features_of(problem: Problem, size: tuple[int, int, int], gap: float) -> Features:
    """Return the features of a program.

    Args:
        problem: B matrices.
        size: links that can bind, columns and updates of the presolved program of the first matrix.
        gap: target gap.
    """
    carries_all = problem.demand_set.carries_all
    kind = "utility" if problem.utility is not None else "carry" if carries_all else "shed"
    scan = problem.paths.scan_size
    batch = problem.batch
    values = features(*size, scan, batch, gap)
    demand_set = type(problem.demand_set)
    return Features(kind, values, scan, batch, demand_set is Capped, demand_set is AtMostOne)


def features(
    rows: int, columns: int, updates: int, scan: int, batch: int, gap: float
) -> tuple[float, ...]:
    """Return the values of FEATURES.

    Args:
        rows, columns, updates: size of the presolved program of the first matrix.
        scan: trie nodes and path slots.
        batch: number of matrices.
        gap: target gap.
    """
    return (
        math.log1p(rows),
        math.log1p(columns),
        math.log1p(updates),
        math.log(max(scan, 1)),
        math.log(max(batch, 1)),
        -math.log10(max(gap, 1e-12)),
    )


@functools.lru_cache(maxsize=16)
def monomials(values: tuple[float, ...]) -> tuple[float, ...]:
    """Return 1, the features x_i, and their products x_i x_j with i <= j."""
    products = [first * second for index, first in enumerate(values) for second in values[index:]]
    return (1.0, *values, *products)


def seconds(engine: str, program: Features, *, is_warm: bool) -> float:
    """Return the predicted seconds of an engine on this machine to the target gap, for all
    matrices.

    Args:
        engine: "interior" or "pdhg".
        program: features of the program.
        is_warm: whether the search has a warm start.
    """
    predicted_s = uncorrected_seconds(engine, program, is_warm=is_warm)
    return calibration_factor(engine, program, is_warm=is_warm) * predicted_s


def calibration_factor(engine: str, program: Features, *, is_warm: bool) -> float:
    """Return the factor on the predicted seconds of an engine on this machine; 1 if none is stored.

    Args:
        engine: "interior" or "pdhg".
        program: features of the program.
        is_warm: whether the search has a warm start.
    """
    return _stored_factors().get(factor_key(engine, program.kind, is_warm=is_warm), 1.0)


def uncorrected_seconds(engine: str, program: Features, *, is_warm: bool) -> float:
    """Return the predicted seconds of an engine on the machine of the measurements.

    Args:
        engine: "interior" or "pdhg".
        program: features of the program.
        is_warm: whether the search has a warm start.
    """
    start = "warm" if is_warm else "cold"
    result = predict(_model(), engine, program.kind, start, program.values)
    # Bounds on columns cost PDHG more iterations than interior points.
    if program.has_bounds and engine == "interior":
        result *= _model()["interior_with_bounds"]
    if is_warm and engine == "interior":
        result *= _column_selection_factor(program)
    return float(result)


def _column_selection_factor(program: Features) -> float:
    """Return the time of a warm-started interior-point search over selected columns, over that of
    one over all columns: at most 1, a power of the number of columns.

    Args:
        program: features of the program.
    """
    if not program.may_select:
        return 1.0
    coefficients = _model()["column_selection"]
    num_columns = math.expm1(program.values[_COLUMNS])
    # The exponent is negative; up to the stored number of columns the factor is 1.
    return float(max(1.0, num_columns / coefficients["columns"]) ** coefficients["exponent"])


def predict(
    model: dict[str, Any], engine: str, kind: str, start: str, values: tuple[float, ...]
) -> float:
    """Return the seconds that a cost model predicts.

    Args:
        model: contents of ``cost_model.json``.
        engine: "interior" or "pdhg".
        kind: kind of the program.
        start: "cold" or "warm".
        values: values of FEATURES.
    """
    coefficients = model["log_seconds"][engine][kind]
    min_values, max_values = model["range"]
    clipped_values = tuple(map(max, min_values, map(min, max_values, values)))
    # Warm starts are measured for one matrix: several take longer by the factor of cold starts.
    log_seconds = _polynomial(coefficients["cold"], clipped_values)
    if start == "warm":
        single_matrix_values = (*clipped_values[:_BATCH], 0.0, *clipped_values[_BATCH + 1 :])
        log_batch_factor = log_seconds - _polynomial(coefficients["cold"], single_matrix_values)
        log_seconds = _polynomial(coefficients["warm"], single_matrix_values) + log_batch_factor
    # Batches above the measured ones take time in proportion.
    log_seconds += values[_BATCH] - min(values[_BATCH], max_values[_BATCH])
    return math.exp(min(log_seconds, _MAX_LOG_SECONDS))


def _polynomial(coefficients: list[float], values: tuple[float, ...]) -> float:
    """Return the value of a polynomial with coefficients of :func:`monomials`."""
    return sum(map(operator.mul, coefficients, monomials(values)))


# Positions in FEATURES, and the largest logarithm of predicted seconds.
_BATCH = FEATURES.index("log_batch")
_COLUMNS = FEATURES.index("log_columns")
_DIGITS = FEATURES.index("digits")
_MAX_LOG_SECONDS = 50.0


def seconds_from_model(program: Features) -> float:
    """Return the predicted seconds of interior points from a PriceGNN, including its prediction.

    The prediction saves a share of the time of a cold solve, the smaller the more digits are asked
    for; over selected columns the rest is shorter still.

    Args:
        program: features of the program.
    """
    cold_s = uncorrected_seconds("interior", program, is_warm=False)
    gnn_constants = _model()["price_gnn"]
    prediction_s = gnn_constants["seconds"] + gnn_constants["seconds_per_scan_entry"] * program.scan
    digits = program.values[_DIGITS]
    saved_share = gnn_constants["saved_share"] + gnn_constants["saved_share_per_digit"] * digits
    saved_share = min(max(saved_share, 0.0), 1.0)
    search_s = (1 - saved_share) * cold_s * _column_selection_factor(program)
    total_s = search_s + program.batch * prediction_s
    # A calibration does not measure the model: its factor is that of interior points.
    return calibration_factor("interior", program, is_warm=False) * total_s


def saves_time_from_model(program: Features) -> bool:
    """Return whether a start from a PriceGNN saves interior points more time than it takes."""
    return seconds_from_model(program) < seconds("interior", program, is_warm=False)


def may_benefit_from_model(problem: Problem) -> bool:
    """Whether a model's start can save time: in programs that maximise a linear value.

    Min-max programs and concave utilities need fewer iterations from a model, but the model takes
    longer than it saves: on networks of 50 to 158 nodes the total took 0.9 to 20 times as long, to
    1% and 0.1%.
    """
    return not problem.demand_set.carries_all and problem.utility is None


def simplex_seconds(problem: Problem, *, is_warm: bool) -> float:
    """Return the predicted seconds of the dual simplex method, for all matrices.

    The pivots of a matrix are a share of the n links; a pivot takes time for each path slot,
    and for each of the n^2 entries of the inverse.

    Args:
        problem: B matrices of a program over paths.
        is_warm: whether there is a warm start; else the first basis takes as long as that of
            several matrices.
    """
    constants = _model()["simplex"]
    num_links = problem.capacity.shape[1]
    pivot_s = (
        constants["pivot_seconds"]
        + constants["pivot_seconds_per_slot"] * problem.paths.leaf.size
        + constants["pivot_seconds_per_entry"] * num_links**2
    )
    matrix_s = constants["seconds"] + constants["pivots_per_row"] * num_links * pivot_s
    # Number of matrices whose time the search for the first basis takes.
    first_basis_matrices = 0 if is_warm else constants["first_basis"]
    return float((first_basis_matrices + problem.batch) * matrix_s)


def favours_simplex(problem: Problem, *, is_warm: bool, gap: float) -> bool:
    """Return whether the dual simplex method is faster than the other engines: there is a basis to
    start from, of a warm start or of the other matrices of a batch, and few paths and links.

    A warm start often certifies a wide gap as it is, and other engines change it little.  The
    method is exact whatever the target gap, so that it pays on more networks where that is small.
    This rule needs no presolved program, which takes longer than the solve of a small network.

    Args:
        problem: B matrices of a program that the method supports.
        is_warm: whether the search has a warm start.
        gap: target gap.
    """
    constants = _model()["simplex"]
    is_in_warm_range = constants["min_gap"] <= gap <= constants["max_warm_gap"]
    is_large_batch = problem.batch >= constants["min_batch"] and gap >= constants["min_gap"]
    if not (is_in_warm_range if is_warm else is_large_batch):
        return False
    # Largest network on which the method pays, by path slots and links.
    is_small_gap = gap <= constants["fine_gap"]
    max_slots = constants["max_slots_at_fine_gap"] if is_small_gap else constants["max_slots"]
    num_links = problem.capacity.shape[1]
    return bool(num_links <= constants["max_links"] and problem.paths.leaf.size <= max_slots)


def pdhg_iterations_within(problem: Problem, available_s: float) -> int:
    """Return how many PDHG iterations take so many seconds, at least a few checks' worth.

    An iteration over L lanes takes L^0.4 times as long as over one, and batches of more lanes are
    solved in parts.

    Args:
        problem: B matrices.
        available_s: time.
    """
    constants = _model()["pdhg_iteration"]
    lanes = max(1, min(problem.batch, constants["lanes"]))
    # Seconds of an iteration over one lane, and number of parts of at most the largest lanes.
    single_lane_s = (
        constants["seconds"] + constants["seconds_per_scan_entry"] * problem.paths.scan_size
    )
    num_parts = math.ceil(problem.batch / lanes)
    return max(
        constants["least"],
        int(available_s / (num_parts * single_lane_s * lanes ** constants["exponent"])),
    )


def max_interior_scan() -> int:
    """Return the largest scan size of a network for interior points."""
    return int(_model()["max_interior_scan"])


def factor_key(engine: str, kind: str, *, is_warm: bool) -> str:
    """Return the key of a factor of a calibration, such as ``pdhg, shed, cold``.

    Args:
        engine: "interior" or "pdhg".
        kind: kind of the program.
        is_warm: whether the search has a warm start.
    """
    return f"{engine}, {kind}, {'warm' if is_warm else 'cold'}"


def store_factors(factors: Factors) -> Path:
    """Store the factors of a calibration for this machine; return the file.

    Args:
        factors: measured over predicted seconds, by :func:`factor_key`.
    """
    path = _factors_path()
    with atomic_file(path) as partial:
        partial.write_text(json.dumps(factors, indent=1) + "\n")
    _stored_factors.cache_clear()
    return path


def remove_factors() -> None:
    """Remove the stored factors for this machine, if there are any."""
    _factors_path().unlink(missing_ok=True)
    _stored_factors.cache_clear()


def _factors_path() -> Path:
    """Return the file of the factors for this cost model, processor and number of threads."""
    key = content_key(PATH.read_bytes(), tuple(processor()), numba.config.NUMBA_NUM_THREADS)
    return cache_dir("cost-model") / f"{key[:32]}.json"


@functools.cache
def _stored_factors() -> Factors:
    """Return the stored factors for this machine; none without a calibration that stored some.

    They are read once a process.
    """
    try:
        stored = json.loads(_factors_path().read_text())
        factors = {str(key): float(factor) for key, factor in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return {key: factor for key, factor in factors.items() if 0 < factor < math.inf}


@functools.cache
def _model() -> dict[str, Any]:
    """Return the contents of ``cost_model.json``."""
    return dict(json.loads(PATH.read_text()))
