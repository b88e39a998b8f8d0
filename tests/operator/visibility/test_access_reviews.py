"""SubjectAccessReviews of the read API: how many are made, at once and in all, and how long they are kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

from tests.cluster.controlplane.certificates import Authority
from tests.operator.read_api import FakeApi, until

from muster_operator.visibility.access import CACHE_S, AccessReviewer, list_jobs
from muster_operator.visibility.request_header import User

LIST = "trainingjobs"
NAMESPACES = [f"team-{number:03}" for number in range(100)]


class SlowReviews:
    """Allows everything in a namespace, once `go` is set, and nothing in all namespaces."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.started = self.running = self.most_running = 0

    async def post(self, path: str, body: bytes) -> bytes:
        namespace = json.loads(body)["spec"]["resourceAttributes"]["namespace"]
        self.started += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if namespace:
                await self.go.wait()
                await asyncio.sleep(0)
        finally:
            self.running -= 1
        return json.dumps({"status": {"allowed": bool(namespace)}}).encode()

    async def has_started(self, number: int) -> None:
        async def holds() -> bool:
            return self.started >= number

        await until(holds)


def test_the_reviews_of_all_users_are_sixteen_at_once() -> None:
    async def run() -> None:
        api = SlowReviews()
        reviewer = AccessReviewer(cast(Any, api))
        api.go.set()
        lists = (reviewer.readable_namespaces(User(name), NAMESPACES) for name in ("alice", "bob", "carol"))
        assert await asyncio.gather(*lists) == [frozenset(NAMESPACES)] * 3
        assert (api.most_running, api.started) == (16, 3 * 101)

    asyncio.run(run())


def test_a_list_that_is_given_up_leaves_no_reviews_behind() -> None:
    async def run() -> None:
        api = SlowReviews()
        reviewer = AccessReviewer(cast(Any, api))
        abandoned = asyncio.create_task(reviewer.readable_namespaces(User("alice"), NAMESPACES))
        await api.has_started(17)  # one of them for all namespaces
        abandoned.cancel()
        await asyncio.wait([abandoned])
        api.go.set()
        assert await reviewer.is_allowed(User("bob"), list_jobs("team-000"))
        assert (api.started, api.running) == (18, 0)

    asyncio.run(run())


def test_requests_of_one_user_share_a_review_that_is_under_way() -> None:
    async def run() -> None:
        api = SlowReviews()
        reviewer = AccessReviewer(cast(Any, api))
        first, *others = (asyncio.create_task(reviewer.is_allowed(User("alice"), list_jobs("mine"))) for _ in range(5))
        await api.has_started(1)
        first.cancel()  # the others do not depend on the request that began the review
        await api.has_started(2)
        api.go.set()
        assert await asyncio.gather(*others) == [True] * 4
        assert api.started == 2

    asyncio.run(run())


def test_reviews_are_kept_for_seconds_only(tmp_path: Path) -> None:
    api, now = FakeApi(Authority(tmp_path), {("alice", LIST, "mine")}), [0.0]
    reviewer = AccessReviewer(cast(Any, api), lambda: now[0])
    alice = User("alice")

    async def run() -> None:
        assert await reviewer.is_allowed(alice, list_jobs("mine"))
        api.rights.clear()
        now[0] = CACHE_S - 0.1
        assert await reviewer.is_allowed(alice, list_jobs("mine"))
        assert not await reviewer.is_allowed(User("alice", groups=("other",)), list_jobs("mine"))
        now[0] = CACHE_S
        assert not await reviewer.is_allowed(alice, list_jobs("mine"))
        assert len(api.reviews) == 3

    asyncio.run(run())
