"""One sweep: every collector is asked once, many at a time, in a loop of its own.

It runs in a thread, so that a thousand slow answers never keep the operator from writing. What answers is a program in
a user's pod: no more is read than an answer can have, no redirect is followed, and nobody is waited for long.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from muster.heartbeat_auth import ANSWER_HEADER, SKEW_S, Peer

AT_ONCE = 64
TIMEOUT_S = 3.0
LARGEST_BYTES = 65_536
_PATH = "/beat"


@dataclass(frozen=True, slots=True)
class Target:
    """A collector: the pod that speaks for a job, where it answers, and the token that both know."""

    uid: str
    pod: str
    host: str
    port: int
    token: str
    durable: bool  # whether the job's checkpoints outlive its pods


class Answer(msgspec.Struct):
    """What a collector says (docs/tracing.md)."""

    now: float
    job_uid: str
    pod: str
    beat: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None
    traces: int = 0
    unreadable: list[str] = []


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: an answer, or in `why` the reason that there is none."""

    target: Target
    answer: Answer | None
    why: str = ""


def ask_all(targets: Sequence[Target], within_s: float) -> list[Outcome]:
    """Ask them in order; blocks until the last has answered or was given up. Nobody is asked after `within_s`: whose
    turn did not come by then has no outcome."""
    return asyncio.run(_ask_all(targets, within_s)) if targets else []


async def _ask_all(targets: Iterable[Target], within_s: float) -> list[Outcome]:
    turn, until = asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop().time() + within_s
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=AT_ONCE, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
    ) as session:

        async def one(target: Target) -> Outcome | None:
            async with turn:
                in_time = asyncio.get_running_loop().time() < until
                try:
                    return await _ask(session, target) if in_time else None
                except Exception as error:  # whatever one answers, the others are heard
                    return Outcome(target, None, f"its answer cannot be taken: {type(error).__name__}")

        outcomes = await asyncio.gather(*(one(target) for target in targets))
    return [outcome for outcome in outcomes if outcome is not None]


async def _ask(session: aiohttp.ClientSession, target: Target) -> Outcome:
    host = f"[{target.host}]" if ":" in target.host else target.host
    peer = Peer(target.token, target.uid, target.pod)
    signed = peer.request(_PATH, time.time(), secrets.token_hex(16))
    headers = {"Authorization": signed, "Accept-Encoding": "identity"}
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            session.get(f"http://{host}:{target.port}{_PATH}", headers=headers, allow_redirects=False) as response,
        ):
            if response.status == 401:
                return Outcome(target, None, f"it answers with 401: another token, or clocks {SKEW_S:g} s apart")
            if response.status != 200:
                return Outcome(target, None, f"it answers with {response.status}")
            body = await response.content.read(LARGEST_BYTES + 1)
            while len(body) <= LARGEST_BYTES and (more := await response.content.read(LARGEST_BYTES + 1)):
                body += more
            signature = response.headers.get(ANSWER_HEADER, "")
        if len(body) > LARGEST_BYTES:
            return Outcome(target, None, f"its answer has more than {LARGEST_BYTES} bytes")
        if not peer.believes(signed, body, signature):
            return Outcome(target, None, "its answer is not signed with the job's token: another program has the port")
        answer = msgspec.json.decode(body, type=Answer)
    except TimeoutError:
        return Outcome(target, None, f"no answer within {TIMEOUT_S:g} s")
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return Outcome(target, None, "its answer is none")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Outcome(target, None, str(error) or type(error).__name__)
    if (answer.job_uid, answer.pod) != (target.uid, target.pod):
        return Outcome(target, None, "another pod answers")
    return Outcome(target, answer)
