"""Logs to stderr as one JSON object per line: time, level, message, and the fields of `extra`."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

CYCLE: ContextVar[str | None] = ContextVar("cycle", default=None)
"""Id of the scheduling cycle in progress: a field of every log line, Event and job status that it writes."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {"time": at, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
        if (cycle := CYCLE.get()) is not None:
            line["cycle"] = cycle
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: str) -> None:
    """Set up logging for the whole process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
