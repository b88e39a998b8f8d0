"""What a page of the dashboard is: a route, a template, and a function from a request to the template's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from muster.client import ClusterClient
from muster.dashboard.analyses import TraceAnalyses
from muster.dashboard.reader import PageReader
from muster.errors import InvalidSpec

MAX_ROWS = 100
"""Rows of a page with a list of jobs or nodes."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request for a page; `reader` is its own. `parameters`: non-empty values of the path and of the query, by
    name. `now`: Unix seconds. `client` reads what the read API does not have, such as logs; prefer `reader`, whose
    answers are shared."""

    reader: PageReader
    client: ClusterClient
    analyses: TraceAnalyses
    parameters: Mapping[str, str]
    now: float

    def get(self, name: str, default: str = "") -> str:
        return self.parameters.get(name, default)

    def choice(self, name: str, valid: tuple[str, ...]) -> str:
        """The same, of which only some values are valid; empty if not given. Raises `InvalidSpec`."""
        found = self.get(name)
        if found and found not in valid:
            raise InvalidSpec(f"{name}: must be one of {', '.join(valid)}; got {found[:80]!r}", field=name)
        return found


@dataclass(frozen=True, slots=True)
class Page:
    """One page, a `muster.routes.Route`. `data` raises `MusterError`, which the page then shows. `title`: also in the
    navigation, if `in_navigation`."""

    path: str
    title: str
    template: str
    data: Callable[[PageRequest], Mapping[str, Any]]
    parameters: tuple[str, ...] = ()
    in_navigation: bool = True


@dataclass(frozen=True, slots=True)
class Document:
    """A whole HTML document without scripts, which is not updated, such as the report of a job. While `read` returns
    None, the page with the same path is shown instead, which says why. `read` raises `MusterError`."""

    path: str
    read: Callable[[PageRequest], bytes | None]
    parameters: tuple[str, ...] = ()


def link(path: str, **parameters: object) -> str:
    """The URL of a page, with the query parameters that are not empty. `path` is quoted already; see `job_link`."""
    query = urlencode({name: value for name, value in parameters.items() if value not in (None, "")})
    return f"{path}?{query}" if query else path


def node_link(name: str) -> str:
    """The URL of a node's page."""
    return f"/nodes/{quote(name, safe='')}"


def job_link(namespace: str | None, name: str) -> str:
    """The URL of a job's page."""
    return f"/jobs/{quote(namespace or 'default', safe='')}/{quote(name, safe='')}"
