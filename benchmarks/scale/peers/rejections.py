"""How a user of a peer sees that a job cannot start: a condition of a pod, of the job's group, or an event.

Each scheduler has other texts for it, so the texts are searched; the one that is seen first counts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager

import msgspec
from benchmarks.scale.client import Client
from benchmarks.scale.contender import WaitReason
from benchmarks.scale.peers.job_objects import PODS
from benchmarks.scale.work import NAMESPACE, Json

EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
# Nothing that is said while pods of the job are still to come: "NotReady: Waiting for 10 pods, currently 1 exist".
_WORDS = (
    "unschedulable", "failedscheduling", "insufficient", "notenoughresources", "couldn't assign", "quotareserved=false",
)  # fmt: skip


def rejection(thing: Json, job: str) -> tuple[str, str] | None:
    """What an event, a pod or a group says of why the job cannot start: the place of it, and the sentence."""
    if "involvedObject" in thing:
        about = thing["involvedObject"]
        if job not in about.get("name", ""):
            return None
        messages = [(f"event {thing.get('reason')} of {about.get('kind')}", thing.get("message", ""))]
    elif job not in thing["metadata"]["name"]:
        return None
    else:
        messages = list(_conditions(thing))
    return next((one for one in messages if _is_refusal(*one)), None)


@asynccontextmanager
async def watch_reason(client: Client, group_path: str | None, job: str) -> AsyncIterator[WaitReason]:
    """Watch pods, events and groups, from now on, until one of them has a reason why the job cannot start."""
    reason = WaitReason()
    paths = [path for path in (PODS, EVENTS, group_path) if path]
    versions = [await _version(client, path) for path in paths]
    tasks = [asyncio.create_task(_watch(client, *one, job, reason)) for one in zip(paths, versions, strict=True)]
    try:
        yield reason
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _watch(client: Client, path: str, version: str, job: str, reason: WaitReason) -> None:
    while True:  # the server may end a watch at any time
        async for line in client.watch(path, version):
            thing = msgspec.json.decode(line)["object"]
            version = thing["metadata"]["resourceVersion"]
            if reason.code:
                return
            if found := rejection(thing, job):
                reason.record(*found)


async def _version(client: Client, path: str) -> str:
    version: str = msgspec.json.decode(await client.get(f"{path}?limit=1"))["metadata"]["resourceVersion"]
    return version


def _conditions(thing: Json) -> Iterator[tuple[str, str]]:
    status = thing.get("status") or {}
    every: Iterable[Json] = [*(status.get("conditions") or ()), *(status.get("schedulingConditions") or ())]
    for one in every:
        place = f"{thing.get('kind')} {one.get('type')}={one.get('status')} {one.get('reason')}"
        yield place, one.get("message") or ""


def _is_refusal(place: str, sentence: str) -> bool:
    text = f"{place} {sentence}".lower()
    return any(word in text for word in _WORDS)
