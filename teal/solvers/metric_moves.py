"""Compiled moves of the search for IGP metrics (:mod:`teal.solvers.metrics`), and their exact loads."""

from __future__ import annotations

import math

import numpy as np

from teal.network.ecmp import IgpLinks, grow_dag, new_dags
from teal.pathops.segment_passes import load_inwards
from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import as_int64, inner_kernel, kernel

_POWER = 10.0  # p of the score; with 24 the search sees the busiest links alone and is trapped
_BUSY_POWER = 8.0  # a busy link is drawn with probability in proportion to u^8
_MOST_CHANGED = 8  # links of a move


@kernel
def score_of(load: FloatArray, inverse: FloatArray) -> tuple[float, float]:
    """The score, and the largest utilisation, of loads (S, M, E) with 1 / capacity (S, E)."""
    largest = 0.0
    for s in range(load.shape[0]):
        for m in range(load.shape[1]):
            for e in range(load.shape[2]):
                largest = max(largest, load[s, m, e] * inverse[s, e])
    if largest <= 0.0:
        return -np.inf, 0.0
    total = 0.0
    for s in range(load.shape[0]):
        for m in range(load.shape[1]):
            for e in range(load.shape[2]):
                u = load[s, m, e] * inverse[s, e] / largest
                u2 = u * u
                u4 = u2 * u2
                total += u4 * u4 * u2
    return math.log(largest) + math.log(total) / _POWER, largest


@kernel
def load_all(links, metric, distance, by_destination, load, volume, after, keys, nodes, passing):  # type: ignore[no-untyped-def]
    """Fill the state of all scenarios."""
    load[:] = 0.0
    by_destination[:] = 0.0
    for s in range(len(load)):
        links.metric[:] = metric[s]
        for t in range(volume.shape[1]):
            grow_dag(t, as_int64(0), links, after, keys, nodes)
            distance[s, t] = after.distance[0]
            for m in range(len(volume)):
                passing[:] = volume[m, t]
                load_inwards(0, links.head, after, passing, by_destination[s, m, t])
                for e in range(load.shape[2]):
                    load[s, m, e] += by_destination[s, m, t, e]


@inner_kernel
def _propose(links, metric, distance, load, inverse, has_demand, most, rng, changed, values):  # type: ignore[no-untyped-def]
    """A move for the scenario without failure: fills ``changed`` and ``values``; the number of links."""
    num_links = len(metric)
    kind = rng.random()
    m = rng.integers(0, load.shape[0])
    if kind < 0.25:
        e = rng.integers(0, num_links)
        changed[0] = e
        if kind < 0.12:
            values[0] = min(most, max(1.0, metric[e] + rng.integers(-3, 4)))
        else:
            values[0] = 1.0 + rng.integers(0, int(most))
        return 1
    largest, total = 0.0, 0.0
    for e in range(num_links):
        largest = max(largest, load[m, e] * inverse[e])
    if largest <= 0.0:
        return 0
    for e in range(num_links):
        total += (load[m, e] * inverse[e] / largest) ** _BUSY_POWER
    draw, busy = rng.random() * total, 0
    for e in range(num_links):
        draw -= (load[m, e] * inverse[e] / largest) ** _BUSY_POWER
        if draw <= 0.0:
            busy = e
            break
    # a destination of traffic on the busy link, the first from a random place
    nodes = distance.shape[0]
    begin, t, u = rng.integers(0, nodes), -1, links.tail[busy]
    for i in range(nodes):
        candidate = (begin + i) % nodes
        to_end = distance[candidate, links.head[busy]]
        if has_demand[candidate] and to_end < np.inf and distance[candidate, u] == metric[busy] + to_end:
            t = candidate
            break
    if t < 0:
        return 0
    if kind < 0.55:
        hops = rng.integers(0, 3)
        for _ in range(hops):  # upstream, to a node that sends over this one
            found = -1
            first = links.in_ptr[u]
            count = links.in_ptr[u + 1] - first
            offset = rng.integers(0, max(1, count))
            for j in range(count):
                e = links.in_link[first + (offset + j) % count]
                if distance[t, links.tail[e]] == metric[e] + distance[t, u]:
                    found = links.tail[e]
                    break
            if found < 0:
                break
            u = found
        size, level = 0, distance[t, u]
        if rng.random() < 0.5:
            level += 1.0
        for j in range(links.out_ptr[u], links.out_ptr[u + 1]):
            e = links.out_link[j]
            wanted = level - distance[t, links.head[e]]
            fits = wanted >= 1.0 and wanted <= most and size < _MOST_CHANGED and metric[e] != wanted
            if fits and rng.random() < 0.7:
                changed[size], values[size] = e, wanted
                size += 1
        return size
    best, other = np.inf, -1
    for j in range(links.out_ptr[u], links.out_ptr[u + 1]):
        e = links.out_link[j]
        length = metric[e] + distance[t, links.head[e]]
        if e != busy and length < best:
            best, other = length, e
    if other < 0:
        return 0
    pass_it = 1.0 if rng.random() < 0.5 else 0.0
    if rng.random() < 0.6:
        value = best - distance[t, links.head[busy]] + pass_it
        changed[0] = busy
    else:
        value = distance[t, u] - distance[t, links.head[other]] - pass_it
        changed[0] = other
    values[0] = min(most, max(1.0, value))
    return 1


@kernel
def anneal(  # type: ignore[no-untyped-def]
    links: IgpLinks, metric, start, distance, by_destination, load, volume, inverse, has_demand, is_failed,
    most, at_most, temperature, moves, rng, best_metric, best_value,
):  # fmt: skip
    """Try so many moves; the least largest utilisation so far.  Changes the state in place."""
    scenarios, matrices, num_links = load.shape
    nodes = distance.shape[1]
    after = new_dags(1, nodes, num_links)
    keys, heap = np.empty(2 * num_links + 2), np.empty(2 * num_links + 2, dtype=np.int32)
    passing = np.empty(nodes)
    changed, values, old = np.empty(_MOST_CHANGED, dtype=np.int64), np.empty(_MOST_CHANGED), np.empty(_MOST_CHANGED)
    affected = np.empty((scenarios * nodes, 2), dtype=np.int64)
    new_distance = np.empty((scenarios * nodes, nodes))
    new_load = np.empty((scenarios * nodes, matrices, num_links))
    trial = load.copy()
    now, _ = score_of(load, inverse)
    plain = metric[0]
    for _ in range(moves):
        size = _propose(links, plain, distance[0], load[0], inverse[0], has_demand, most, rng, changed, values)
        different = 0
        for e in range(num_links):
            value = plain[e]
            for i in range(size):
                if changed[i] == e:
                    value = values[i]
            different += value != start[e]
        if size == 0 or different > at_most:
            continue
        for i in range(size):
            old[i] = plain[changed[i]]
        count = 0
        trial[:] = load
        for s in range(scenarios):
            is_ready = False
            for t in range(nodes):
                if not has_demand[t]:
                    continue
                is_hit = False
                for i in range(size):
                    e = changed[i]
                    if is_failed[s, e]:
                        continue
                    to_start, to_end = distance[s, t, links.tail[e]], distance[s, t, links.head[e]]
                    if to_end == np.inf:
                        continue
                    if values[i] > old[i]:
                        is_hit |= to_start == old[i] + to_end
                    elif values[i] < old[i]:
                        is_hit |= to_end + values[i] <= to_start
                if not is_hit:
                    continue
                if not is_ready:
                    links.metric[:] = metric[s]
                    for i in range(size):
                        if not is_failed[s, changed[i]]:
                            links.metric[changed[i]] = values[i]
                    is_ready = True
                grow_dag(t, as_int64(0), links, after, keys, heap)
                affected[count, 0], affected[count, 1] = s, t
                new_distance[count] = after.distance[0]
                new_load[count] = 0.0
                for m in range(matrices):
                    passing[:] = volume[m, t]
                    load_inwards(0, links.head, after, passing, new_load[count, m])
                    for e in range(num_links):
                        trial[s, m, e] += new_load[count, m, e] - by_destination[s, m, t, e]
                count += 1
        score, largest = score_of(trial, inverse)
        if score <= now or rng.random() < math.exp((now - score) / temperature):
            now = score
            load[:] = trial
            for i in range(size):
                for s in range(scenarios):
                    if not is_failed[s, changed[i]]:
                        metric[s, changed[i]] = values[i]
            for i in range(count):
                s, t = affected[i]
                distance[s, t] = new_distance[i]
                for m in range(matrices):
                    by_destination[s, m, t] = new_load[i, m]
            if largest < best_value * (1 - 1e-12):
                best_value = largest
                for e in range(num_links):
                    best_metric[e] = plain[e]
    return best_value
