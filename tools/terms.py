"""Checks for retired names, and for public classes of the same name.

Names and sentences are those of Kubernetes, Slurm and PyTorch (docs/reference/glossary.md); a term that was replaced
must not come back. Run by `make check`; prints each place and exits with 1 where there is any.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PRODUCT = ("platform/", "components/", "operators/")
EXEMPT = ("CHANGELOG.md", "docs/operations/releases.md", "tools/terms.py", "tests/test_terms.py", "constraints/")
"""Where old names are listed beside the new ones, and generated files."""
RETIRED = {
    "InsufficientResources": r"NoRoom",
    "TopologyUnsatisfiable": r"TopologyNoRoom",
    "WaitingForPreemption": r"HoldWaiting",
    "BlockedByQueueHead": r"BehindHead",
    "Nominated, NominationLost, NominationExpired": r"RoomHeld|HoldLost|HoldExpired",
    "FlavorNotFound, FlavorNotAllowed": r"UnknownFlavor",
    "PlacementInvalidated": r"NoLongerFits",
    "StatusWriteFailed": r"SetAside",
    "NotReconciled": r"NotSeen",
    "ReplicaStatusUnknown": r"ReplicaNotSeen",
    "CollectorUnreachable": r"CollectorSilent",
    "MusterNoLeader, MusterMultipleLeaders": r"MusterNobodyActs|MusterTwoAct",
    "MusterSchedulingSlow": r"MusterPlansSlowly",
    "MusterComponentFailing": r"(?:Muster)?PartFails",
    "MusterQueueStalled": r"MusterQueueStands|QueueStands",
    "virtual": r"pretended|imagination",
    "must be ...; got ...": r"is no (?:number|name|object|truth value|time|duration)|lasts no time",
    "UncertainWrites, EventRecorder, PendingEvent, StatusUpdater": r"Doubts|Outbox|Letter|Desk|Staffing|Shelf",
    "without effect, without success": r"in vain",
    "DaemonUnavailable, RequestTracker, ChangeNotifier, Quarantine": r"NobodyThere|News|Aside",
    "QuickReject, BackfillReservations, QuotaForecast, ExpectedReleases": r"Futile|Promises|Outlook|Departures",
    "FairShareOrder, StaticOrder, ActiveNomination, Decisions": r"FairLine|FlatLine|Held|Acts",
    "messages, UnschedulableReason, PreemptionRights": r"Wording|Shortage|Explainer|Rights",
    "LogOptions, SourceMap, FieldError": r"Excerpt|Located|Complaints?",
    "WriteThrottle, WriteQueue, DeferredStatusQueue": r"Rush|Backlog|Seal",
    "WriteQueue, JobMetrics, Backoff, PodTombstones": r"Refusals|Accounts|Pauses|Departed",
    "PodRequirements, HeartbeatPoller": r"PodClaims?|Learned|Asking",
    "InvalidObject, invalid_placements, Observation": r"Faulty|[Mm]isfits|Sight",
    "TrainStep, StepHandle, StepTimer, TrainerArgs, PeersDone": r"Pace|Launched|Recipe|MayLeave",
    "all pods of a gang start together": r"marches|alive and well",
    "reported, evicted, recorded": r"(?i:told)",
    "no gang, no other, none": r"(?i:nobody)",
    "capacity, quota": r"(?i:room)",
    "the client, the user, any process that": r"(?i:whoever)",
    "another client, a user, every user": r"(?i:somebody|anybody|everybody)",
    "is not reconciled, does not depend on": r"(?i:stands? still|at peace|knows nothing of)",
    "failure of a node": r"(?i:collateral)",
    "evaluate_attempt, Transition, PodSlot": r"(?i:judge[ds]?|ruling|seats?)",
    "ReconcileResult, QueueReadiness, result": r"(?i:verdicts?)",
    "scenario, copy, snapshot": r"(?i:story|twins?)|(?i:(?:an?|the|small|random) worlds?)(?! sizes?\b)",
    "truncate_depth, crdgen, find, Timeouts": r"shorn|misfits|ROOM_KEEPERS|find_access|first_objects|job_words",
    "client config, sync, Nomination": r"find_context|pass_over|in_front|must_agree|unborn",
}
"""Regular expressions of retired terms, by the term to use; they match whole words, also between underscores."""
_EXEMPT_FROM = {
    "ReconcileResult, QueueReadiness, result": (
        ".importlinter",
        "platform/muster/tracing/",
        "platform/muster/cli/",
        "tests/tracing/",
        "tests/trainer/test_slow_loader.py",
        "benchmarks/false_alarms.py",
        "benchmarks/README.md",
        "benchmarks/catalogue/",
        "benchmarks/faults.py",
        "tests/cli/",
        "docs/tasks/traces-only.md",
        "docs/concepts/tracing.md",
        "docs/concepts/analysis.md",
        "examples/16-straggler/",
        "docs/reference/cli.md",
        "docs/reference/performance",
        "benchmarks/results/",
    ),
}
"""Paths in which one of these terms is right. `verdicts` is a key of the JSON report of a trace."""
RETIRED_NAMES = {
    "ObservedState, Snapshot": r"World|worlds|World(?:View|State)",
    "fault, error, failure": r"(?i:troubles?)",
    "heartbeat": r"beats?|kept_beats",
    "unmanaged": r"foreign",
    "admission": r"stays?",
    "ChangeTracker, TimerQueue, Nomination": r"Alarms|Hold",
    "Transition, AttemptContext, JobReconciler": r"Ruling|_Case|_Life|Draft",
    "PlannerCache, PlacementGroup, PreemptionResult": r"Memo|Spot|Bundles|Freed|Victims|Several|Entitlement",
    "FreeCapacity, IntersectionView, ReservedView, NodeUsage": r"Room|Both|Less|Load|Spread",
    "DaemonClient, InformerSet, PodControl, LRUCache": r"Caller|Watching|Admitting|Alone|ByName",
    "ClientConfig, KubeContext, JobDetails, Outlier": r"Access|JobStory|Beyond|Collected",
    "RankLayout, SignalReceived, TrainStep, SchedulingArgs": r"Place|Told|Stepper|Asked",
    "rejection, error": r"(?:[Rr]efusals|[Cc]omplaints?)",
    "requested, printed, received": r"asked|said|heard|spoken|learned",
    "ResourceEventHandler, MutationCache, Timeouts": r"[Ss]ink|shelf|Bounds",
    "load_config, describe, progress, output": r"readback|doing|distant|completing|helping|printing|pictures",
    "launcher, exit_status, supervise, sync": r"spawning|endings|lasting|_look|_press|look",
}
"""Regular expressions of whole identifiers in Python, where the word has other uses in text."""
_RETIRED_MODULES = {
    "humanize, duration, suggest, text, tables": r"amounts|forms|nearest|wrapping|terminal|documents",
    "types, describe, errors, progress, exit_codes": r"shapes|reading|writing|refusals?|waiting|outcome",
    "run_sync, sections, formatting, instrument": r"keeping|ending|scan|temporal|figures|facts|attach|stopping",
    "a noun of the field": r"known|narrow|away|another|halfway|cut|story|strangers|failing|journey",
}
"""Regular expressions of names of modules and, without `test_`, of test files."""
_ANY_NAME = re.compile("|".join(f"(?:{pattern})" for pattern in RETIRED_NAMES.values()))
_ANY_TERM = re.compile(rf"(?<![^\W_])(?:{'|'.join(f'(?:{pattern})' for pattern in RETIRED.values())})(?![^\W_])")
_PATTERNS = {term: re.compile(rf"(?<![^\W_])(?:{pattern})(?![^\W_])") for term, pattern in RETIRED.items()}


def retired_terms(text: str, path: str = "") -> list[tuple[int, str, str]]:
    """Return line number from 1, the retired term found there, and the term to use."""
    patterns = {t: p for t, p in _PATTERNS.items() if not path.startswith(_EXEMPT_FROM.get(t, ("//",)))}
    return [
        (number, found.group(), term)
        for number, line in enumerate(text.splitlines(), start=1)
        if _ANY_TERM.search(line)
        for term, pattern in patterns.items()
        for found in pattern.finditer(line)
    ]


def retired_names(source: str) -> list[tuple[int, str, str]]:
    """Return line number from 1, the retired identifier defined or used there, and the term to use."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case _:
                continue
        if _is_retired_name(name):
            found |= {
                (node.lineno, name, term) for term, pattern in RETIRED_NAMES.items() if re.fullmatch(pattern, name)
            }
    return sorted(found)


@cache
def _is_retired_name(name: str) -> bool:
    return _ANY_NAME.fullmatch(name) is not None


def retired_file_name(path: str) -> list[tuple[str, str]]:
    """Return the retired term that a Python module has as its name, and the term to use."""
    name = Path(path).stem.removeprefix("test_")
    patterns = [(t, p) for t, p in RETIRED.items() if not path.startswith(_EXEMPT_FROM.get(t, ("//",)))]
    return [
        (name, term)
        for term, p in (*patterns, *RETIRED_NAMES.items(), *_RETIRED_MODULES.items())
        if re.fullmatch(p, name)
    ]


def duplicate_classes(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the files of each public class name that is defined more than once. `sources`: path and text."""
    places = defaultdict(list)
    for path, text in sources:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def main(root: Path) -> int:
    """Print what is found; return the exit code."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, stdout=subprocess.PIPE, check=True).stdout
    texts = {}
    for name in listed.decode().split("\0"):
        path = root / name
        if name and path.is_file() and b"\0" not in (content := path.read_bytes())[:8000]:
            texts[name] = content.decode(errors="replace")
    found = 0
    for name, text in texts.items():
        if name.startswith(EXEMPT):
            continue
        if name.endswith(".py"):
            for old, new in retired_file_name(name):
                print(f"{name}: {old!r} is retired as the name of a module; use: {new}")
                found += 1
        for number, old, new in retired_terms(text, name) + (retired_names(text) if name.endswith(".py") else []):
            print(f"{name}:{number}: {old!r} is retired; use: {new}")
            found += 1
    product = ((name, text) for name, text in texts.items() if name.startswith(PRODUCT) and name.endswith(".py"))
    for name, paths in duplicate_classes(product).items():
        print(f"class {name} is defined in {', '.join(paths)}: public class names are unique")
        found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
