"""The users of the dashboard's Service, by the tokens in their requests.

The API server decides who a token belongs to and what its owner may read: each user's requests are made with that
user's token, and with nothing else. A token is kept in memory only, while its owner uses it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from muster.cluster_client.client import KubernetesClusterClient
from muster.cluster_client.logs import LogAccess
from muster.dashboard.live import AccessEnded, TooManyViewers, Viewer
from muster.dashboard.render import Renderer
from muster.dashboard.user_pages import UserPages
from muster.errors import ClusterError, MusterError
from muster.kube.config import ClientConfig
from muster.kube.sync_client import KubeClient

MAX_TOKENS, MAX_TOKENS_PER_USER = 128, 8
MAX_STREAMS, MAX_STREAMS_PER_TOKEN = 128, 8
"""Pages that are kept current at a time."""
IDLE_S = 60.0
"""A token that was not used for this time is forgotten."""
_IDENTITY_AGE_S = 5.0  # how long an answer of the API server about a token is used
# Credentials of this process are not the user's, and one user's log must not take the memory of others.
_LOG_ACCESS = LogAccess(reads_stores=False, limit_bytes=1 << 20)


class TooManyUsers(Exception):
    """`MAX_TOKENS` tokens are in use, and no group of users has more than the one that asks."""


class TokenPages(UserPages):
    """The pages for the owner of one token. `config` has this token. `streams`: of all users."""

    def __init__(self, config: ClientConfig, renderer: Renderer, streams: threading.Semaphore) -> None:
        self._kube_client = KubeClient(config)
        client = KubernetesClusterClient(self._kube_client, log_access=_LOG_ACCESS)
        super().__init__(client, renderer, max_viewers=MAX_STREAMS_PER_TOKEN)
        self._streams = streams
        self.used_at = 0.0

    def user_name(self) -> str:
        """Who the API server says that the owner is. Raises `ClusterError` Unauthorized if it rejects the token."""
        return self.reader.remember("user name", self._kube_client.username, _IDENTITY_AGE_S, rest=0.0)

    def live_content(self, target: str) -> str:
        """Raises `AccessEnded` once the API server rejects the token, which has expired, for example. After any other
        error the page says what fails."""
        try:
            self.user_name()
        except MusterError as error:
            if is_rejected(error):
                raise AccessEnded from error
        return super().live_content(target)

    @contextmanager
    def viewer(self, target: str) -> Iterator[Viewer]:
        """As of any user; also raises `TooManyViewers` if all users together have too many."""
        if not self._streams.acquire(blocking=False):
            raise TooManyViewers
        try:
            with super().viewer(target) as viewer:
                yield viewer
        finally:
            self._streams.release()


def _group(name: str) -> str:
    """The namespace of a service account, which can have any number of them; other users are groups of their own."""
    return name.rpartition(":")[0] if name.startswith("system:serviceaccount:") else name


def is_rejected(error: MusterError) -> bool:
    """Whether the API server does not accept a token, rather than not answering."""
    return isinstance(error, ClusterError) and error.reason == "Unauthorized"


class TokenUsers:
    """Pages by token. `config` is the API server's, without a login. Thread-safe."""

    def __init__(self, config: ClientConfig, renderer: Renderer, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self.renderer = renderer
        self._clock = clock
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)
        self._lock = threading.Lock()
        self._known: dict[bytes, tuple[str, TokenPages]] = {}  # by SHA-256 of the token, least recently used first

    def pages(self, token: str) -> tuple[str, TokenPages]:
        """The name of a token's owner, and the owner's pages. Raises `ClusterError` Unauthorized if the API server
        rejects the token, as `KubeClient.request` if it does not answer, and `TooManyUsers`."""
        key = hashlib.sha256(token.encode()).digest()
        with self._lock:
            _, pages = self._known.get(key, ("", None))
        if pages is None:
            pages = self._new_pages(token)
        try:
            name = pages.user_name()
        except MusterError as error:
            if is_rejected(error):
                with self._lock:
                    self._drop(key)
            raise
        with self._lock:
            known = self._known.pop(key, None)
            if known is not None:
                pages = known[1]
            else:
                self._drop_for(name)
                if pages.updates.has_ended:  # dropped while the API server was asked
                    pages = self._new_pages(token)
                pages.updates.start()
            pages.used_at = self._clock()
            self._known[key] = (name, pages)
        return name, pages

    def drop_idle(self) -> None:
        """Forget the tokens that are not used any more."""
        with self._lock:
            for key in [key for key, (_, pages) in self._known.items() if self._is_idle(pages)]:
                self._drop(key)

    def end(self) -> None:
        """Close all connections, and forget all tokens."""
        with self._lock:
            for key in list(self._known):
                self._drop(key)

    def _new_pages(self, token: str) -> TokenPages:
        headers = {"Authorization": f"Bearer {token}"}
        return TokenPages(replace(self._config, auth_headers=lambda: headers), self.renderer, self._streams)

    def _is_idle(self, pages: TokenPages) -> bool:
        return not pages.updates.viewers and self._clock() - pages.used_at >= IDLE_S

    def _drop_for(self, name: str) -> None:
        """Make place for another token of this user. One user, who can have any number of tokens, has no more than
        `MAX_TOKENS_PER_USER`."""
        own = [key for key, (owner, _) in self._known.items() if owner == name]
        if len(own) >= MAX_TOKENS_PER_USER:
            self._drop(own[0])
        if len(self._known) >= MAX_TOKENS:
            idle = next((key for key, (_, pages) in self._known.items() if self._is_idle(pages)), None)
            self._drop(self._of_largest_group(name) if idle is None else idle)

    def _of_largest_group(self, name: str) -> bytes:
        """The least recently used token of the group with the most tokens, so that one who has many accounts, such as
        the service accounts of a namespace, keeps no others out. Raises `TooManyUsers` if the group of `name` would
        have as many."""
        numbers = Counter(_group(owner) for owner, _ in self._known.values())
        group, largest = numbers.most_common(1)[0]
        if numbers[_group(name)] + 1 >= largest:
            raise TooManyUsers
        return next(key for key, (owner, _) in self._known.items() if _group(owner) == group)

    def _drop(self, key: bytes) -> None:
        _, pages = self._known.pop(key, ("", None))
        if pages is not None:
            pages.updates.end()
