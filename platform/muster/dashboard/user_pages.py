"""The pages as one user sees them: all browsers of the user share what was read from the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

from muster.client import ClusterClient
from muster.dashboard.analyses import TraceAnalyses
from muster.dashboard.live import MAX_VIEWERS, LiveUpdates, Viewer
from muster.dashboard.page import Page, PageRequest
from muster.dashboard.pages import DOCUMENTS
from muster.dashboard.reader import PageReader
from muster.dashboard.render import Renderer
from muster.errors import MusterError, NotFound
from muster.routes import find_route


class UserPages:
    """`client` has the login of the user. `clock` returns Unix seconds. Live updates need `updates.running()`."""

    def __init__(
        self,
        client: ClusterClient,
        renderer: Renderer,
        clock: Callable[[], float] = time.time,
        max_viewers: int = MAX_VIEWERS,
    ) -> None:
        self._client = client
        self._renderer = renderer
        self._clock = clock
        self.reader = PageReader(client.read)
        self.analyses = TraceAnalyses()
        self.updates = LiveUpdates(self.live_content, max_viewers=max_viewers)

    def document(self, target: str, user: str = "") -> tuple[HTTPStatus, str]:
        """The whole page of a URL's path and query. `user` is shown in its header."""
        status, page, content = self._content(target)
        return status, self._renderer.document(content, page, target, self._clock(), user)

    def plain_document(self, target: str) -> bytes | None:
        """The `Document` of a URL; None if it has none, or none yet. Raises `MusterError` if it cannot be shown."""
        try:
            document, parameters = find_route(DOCUMENTS, target)
        except NotFound:
            return None
        return document.read(self._request(parameters))

    def error_document(self, error: MusterError, target: str, user: str = "") -> tuple[HTTPStatus, str]:
        """A whole page that shows an error."""
        status, content = self._renderer.error_content(error)
        return status, self._renderer.document(content, None, target, self._clock(), user)

    def live_content(self, target: str) -> str:
        """The part of the page that changes."""
        return self._content(target)[2]

    @contextmanager
    def viewer(self, target: str) -> Iterator[Viewer]:
        """A browser that shows a page. Raises `NotFound` and `InvalidSpec` as `find_route`, and `TooManyViewers`."""
        find_route(self._renderer.pages, target)
        with self.updates.viewer(target) as viewer:
            yield viewer

    def _content(self, target: str) -> tuple[HTTPStatus, Page | None, str]:
        """Status, page (None if there is none), HTML of its content."""
        try:
            page, parameters = find_route(self._renderer.pages, target)
        except MusterError as error:
            status, content = self._renderer.error_content(error)
            return status, None, content
        status, content = self._renderer.content(page, self._request(parameters))
        return status, page, content

    def _request(self, parameters: Mapping[str, str]) -> PageRequest:
        given = {name: value for name, value in parameters.items() if value}
        return PageRequest(self.reader.for_one_page(), self._client, self.analyses, given, self._clock())
