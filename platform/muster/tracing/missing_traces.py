"""Why steps configured for tracing have no trace, from the trainer's events (docs/run-folder.md)."""

from __future__ import annotations

from muster.tracing.run_folder import RunEvent, RunFolder

_MAX_MESSAGE_LENGTH = 500  # characters of a message


def missing_trace_reasons(folder: RunFolder) -> list[str]:
    """Sentences about the newest attempt configured for tracing: traces that could not be written and, if there is no
    trace at all, that its steps were not reached, or not yet."""
    events = [event for event in folder.events if event.kind in ("trace_planned", "trace_missed", "trace_failed")]
    attempt = max((event.attempt for event in events), default=0)
    newest = [event for event in events if event.attempt == attempt]
    found = {kind: [event for event in newest if event.kind == kind] for kind in ("trace_failed", "trace_missed")}
    if found["trace_failed"] or folder.windows:
        return [_sentence(event) for event in found["trace_failed"]]
    if found["trace_missed"]:
        return [_sentence(found["trace_missed"][-1])]
    return [
        f"No trace yet: {event.message[:_MAX_MESSAGE_LENGTH]}, and {_newest_step_phrase(folder)}."
        for event in newest[-1:]
    ]


def _sentence(event: RunEvent) -> str:
    message = event.message[:_MAX_MESSAGE_LENGTH]
    return f"{message[:1].upper()}{message[1:]}."


def _newest_step_phrase(folder: RunFolder) -> str:
    steps = [heartbeat.step for heartbeat in folder.heartbeats if heartbeat.step is not None]
    steps += [int(metrics.step[-1]) for metrics in folder.metrics]
    return f"the newest step is {max(steps)}" if steps else "no step is known"
