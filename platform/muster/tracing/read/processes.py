"""The processes of a file into which the traces of several ranks were merged."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from muster.errors import InvalidTrace
from muster.tracing.read.events import DEVICE_WORK, EventKind, Mask, Trace

MIN_MATCHED = 0.5
"""The part of the launched work of a device that has its launch in the process that it is given to."""
_LABEL = re.compile(r"^(.*\D)??\s*\d+\s*$")
_NUMBER = re.compile(r"\d+")


def split_processes(trace: Trace) -> tuple[Trace, ...]:
    """The trace of each process, by rank; a trace of one process as it is.

    Merged files have the rank in the ids of the processes (`[TP01] 4711`) or nowhere: then the processes are numbered.
    Work belongs to the process with the same label, else to the one that launched it. Raises InvalidTrace if it cannot
    be known.
    """
    kinds = trace.events.kind
    rows = np.bincount(trace.events.thread[kinds == EventKind.CPU_OP], minlength=len(trace.threads))
    hosts = list(dict.fromkeys(thread.pid for thread, count in zip(trace.threads, rows, strict=True) if count))
    if len(hosts) < 2:
        return (trace,)
    labels = {thread.pid: _label(thread.pid) for thread in trace.threads}
    labelled = len({labels[host] for host in hosts}) == len(hosts) and all(labels[host] for host in hosts)
    on_device = np.isin(kinds, (*DEVICE_WORK, EventKind.SYNC, EventKind.DEVICE_ANNOTATION))
    owner: dict[str, str] = {}  # of the rows of devices
    for pid in dict.fromkeys(thread.pid for thread in trace.threads):
        if pid in hosts or not (here := on_device & _of_process(trace, pid)).any():
            continue
        if labelled:
            found = next((host for host in hosts if labels[host] == labels[pid]), None)
        else:
            found = _launching_process(trace, here, hosts, set(owner.values()))
        if found is None:
            raise InvalidTrace(
                f"{trace.source}: {len(hosts)} processes are merged in this file, and it does not say to which of them "
                f"the device {pid!r} belongs; give the files of the ranks"
            )
        owner[pid] = found
    ranks = _ranks([labels[host] for host in hosts]) if labelled else None
    ordered = sorted(range(len(hosts)), key=lambda i: ranks[i]) if ranks else range(len(hosts))
    return tuple(_process(trace, hosts[i], owner, ranks[i] if ranks else i, len(hosts)) for i in ordered)


def _label(pid: str) -> str:
    found = _LABEL.match(pid)
    return (found[1] or "").strip() if found else ""


def _ranks(labels: list[str]) -> list[int] | None:
    """The number in each label; None if they are not different."""
    numbers = [int(found[0][:9]) if (found := _NUMBER.search(label)) else -1 for label in labels]
    return numbers if len(set(numbers)) == len(labels) and min(numbers) >= 0 else None


def _of_process(trace: Trace, pid: str) -> Mask:
    mine = np.array([thread.pid == pid for thread in trace.threads], dtype=bool)
    return mine[trace.events.thread]


def _launching_process(trace: Trace, work: Mask, hosts: list[str], taken: set[str]) -> str | None:
    """The process that launched most of some device work: processes have the same ids, so of several that may have,
    the first without a device."""
    events = trace.events
    work = work & (events.correlation >= 0) & np.isin(events.kind, DEVICE_WORK)
    best, found = (MIN_MATCHED, False), None
    for host in hosts:
        launches = events[_of_process(trace, host) & (events.kind == EventKind.RUNTIME) & (events.correlation >= 0)]
        if not len(launches) or not work.any():
            continue
        order = np.argsort(launches.correlation, kind="stable")
        ids = launches.correlation[order]
        at = np.minimum(np.searchsorted(ids, events.correlation[work]), len(ids) - 1)
        before = launches.start[order][at] <= events.start[work]
        matched = float(((ids[at] == events.correlation[work]) & before).mean())
        if (score := (round(matched, 2), host not in taken)) > best:
            best, found = score, host
    return found


def _process(trace: Trace, host: str, owner: dict[str, str], rank: int, count: int) -> Trace:
    mine = np.array([owner.get(thread.pid, thread.pid) == host for thread in trace.threads], dtype=bool)
    world = trace.world_size
    return replace(
        trace,
        source=f"{trace.source} (process {host})",
        rank=rank,
        world_size=world if world is not None and world >= count else None,
        events=trace.events[mine[trace.events.thread]],
        memory=None,
        transfers=None,
        shapes=None,
    )
