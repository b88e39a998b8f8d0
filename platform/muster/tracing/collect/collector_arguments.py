"""The command line of the collector."""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path

from muster.api.quantity import parse_quantity
from muster.text import is_count
from muster.tracing.collect.manifest_updates import MAX_STORED_BYTES
from muster.tracing.collect.spool_collector import MAX_TRACE_BYTES


def argument_parser(description: str) -> argparse.ArgumentParser:
    """The options of `python -m muster.tracing.collector`."""
    parser = argparse.ArgumentParser(prog="python -m muster.tracing.collector", description=description)
    parser.add_argument("--run-dir", type=Path, required=True, help="the job's run folder (MUSTER_RUN_DIR)")
    parser.add_argument(
        "--mount",
        type=Path,
        metavar="DIR",
        help="mount point above --run-dir; symbolic links below it are not followed; default: --run-dir",
    )
    parser.add_argument("--role", required=True, help="the pod's role (MUSTER_ROLE)")
    parser.add_argument("--index", type=int, required=True, help="the pod's index in its role (MUSTER_REPLICA)")
    parser.add_argument(
        "--ranks", type=parse_ranks, default=None, help="the pod's ranks, such as 0-1 or 0,3; default: all"
    )
    parser.add_argument("--store", default=None, metavar="URL", help="also upload traces there: s3://bucket/run")
    state = "folder that only this collector can write: interrupted uploads to S3 continue; default: they begin anew"
    parser.add_argument("--state-dir", type=Path, default=None, metavar="DIR", help=state)
    parser.add_argument(
        "--store-metrics",
        action="store_true",
        help="also upload metrics, heartbeats and events, periodically and at the end",
    )
    parser.add_argument(
        "--termination-message-path",
        type=Path,
        default=None,
        metavar="FILE",
        help="file for the number of collected traces and the newest checkpoint, written at the end",
    )
    parser.add_argument(
        "--max-trace-bytes",
        type=_parse_size,
        default=MAX_TRACE_BYTES,
        metavar="SIZE",
        help="maximum uncompressed size of a trace; larger ones are listed as corrupt; default 16Gi",
    )
    parser.add_argument(
        "--max-stored-bytes",
        type=_parse_size,
        default=MAX_STORED_BYTES,
        metavar="SIZE",
        help="maximum size of this pod's traces in the run folder; above it the oldest are deleted; default 32Gi",
    )
    parser.add_argument("--poll-seconds", type=float, default=1.0, help="seconds between polls; default 1")
    parser.add_argument("--port", type=_parse_port, default=None, help="serve GET /heartbeat; requires --token-file")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="the token that signs requests and responses")
    parser.add_argument(
        "--store-credentials",
        type=Path,
        metavar="DIR",
        help="folder of credentials: a file per environment variable",
    )
    parser.add_argument(
        "--address", type=_parse_ip, default="127.0.0.1", metavar="IP", help="listen address; default %(default)s"
    )
    parser.add_argument(
        "--open-spool",
        action="store_true",
        help="let ranks of any user write traces; only for a volume of this pod alone",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--follow", action="store_true", help="run until SIGTERM, then collect the rest (default)")
    mode.add_argument("--until-idle", action="store_true", help="collect the finished traces, then exit")
    return parser


def parse_ranks(text: str) -> frozenset[int]:
    """`0-1,4` means ranks 0, 1 and 4. Raises argparse.ArgumentTypeError."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not is_count(first) or (dash and not is_count(last)):
            raise argparse.ArgumentTypeError(f"must be ranks or ranges of ranks, such as 0-1 or 0,3; got {part!r}")
        found.update(range(int(first), int(last or first) + 1))
    if not found:
        raise argparse.ArgumentTypeError(f"must name at least one rank, such as 0-1 or 0,3; got {text!r}")
    return frozenset(found)


def _parse_port(text: str) -> int:
    if not is_count(text) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535; got {text!r}")
    return int(text)


def _parse_size(text: str) -> int:
    try:
        size = parse_quantity(text, "memory")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more; got {text!r}")
    return size


def _parse_ip(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an IP address, such as 127.0.0.1; got {text!r}") from None
