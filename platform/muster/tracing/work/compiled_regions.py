"""Names of compiled graphs: the function and line that was compiled, where a trace names graphs by hashes.

Inductor's annotation of a graph has a hash, and the annotation around a compiled function the id of its compilation,
for which the trainer records function, file and line. A backward graph has no such annotation around it: backward
passes run in the opposite order of the forward passes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.tracing.read.events import Trace
from muster.tracing.runs.compilation import CompilationRecord
from muster.tracing.work.operator_stats import COMPILED_PREFIX, OperatorStats, merge_operators
from muster.tracing.work.work_kinds import COMPILED_GRAPH, matching_names, nested_events

REGION = re.compile(r"Torch-Compiled Region: (\S+)")


@dataclass(frozen=True, slots=True)
class CompiledRegion:
    """The compilation that a graph belongs to, by torch's id (`0/1`), and whether it is its backward pass."""

    compile_id: str
    is_backward: bool


def compiled_regions(trace: Trace) -> dict[str, CompiledRegion]:
    """By the name of each graph's annotation the region that most of its calls belong to."""
    is_region, is_graph = matching_names(trace, REGION), matching_names(trace, COMPILED_GRAPH)
    if not is_region.any() or not is_graph.any():
        return {}
    events = nested_events(trace)
    regions, graphs = events[is_region[events.name]], events[is_graph[events.name]]
    if not len(regions) or not len(graphs):
        return {}
    regions = regions[np.argsort(regions.start, kind="stable")]
    graphs = graphs[np.argsort(graphs.start, kind="stable")]
    around = np.maximum(np.searchsorted(regions.start, graphs.start, side="right") - 1, 0)
    inside = (regions.start[around] <= graphs.start) & (graphs.end <= regions.end[around])
    votes: defaultdict[str, Counter[CompiledRegion]] = defaultdict(Counter)
    forwards: list[str] = []  # those whose backward pass has not run yet
    for graph, region, is_forward in zip(graphs.name.tolist(), regions.name[around].tolist(), inside, strict=True):
        if is_forward:
            found = REGION.match(trace.names[region])
            forwards.append(found[1] if found else "")
            votes[trace.names[graph]][CompiledRegion(forwards[-1], is_backward=False)] += 1
        elif forwards:
            votes[trace.names[graph]][CompiledRegion(forwards.pop(), is_backward=True)] += 1
    return {name: found.most_common(1)[0][0] for name, found in votes.items()}


def compiled_places(records: Sequence[CompilationRecord]) -> dict[str, str]:
    """By the id of each compilation of the newest attempt `forward (model.py:12)`."""
    attempt = max((record.attempt for record in records), default=0)
    return {
        record.compile_id: f"{record.function} ({(record.file or '').rpartition('/')[2]}:{record.line})"
        for record in records
        if record.kind == "graph" and record.attempt == attempt and record.compile_id is not None
    }


def name_graphs(
    operators: Sequence[OperatorStats], regions: Mapping[str, CompiledRegion], places: Mapping[str, str]
) -> tuple[OperatorStats, ...]:
    """The operators with graphs named by their place, or by the id of their compilation; equal names are summed."""
    named = []
    for operator in operators:
        region = regions.get(operator.name)
        if region is not None:
            place = places.get(region.compile_id, f"region {region.compile_id}")
            kind = "backward of " if region.is_backward else ""
            operator = replace(operator, name=f"{COMPILED_PREFIX}{kind}{place}")
        named.append(operator)
    return merge_operators([tuple(named)])
