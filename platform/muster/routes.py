"""Routes of the HTTP servers: paths such as `/jobs/{namespace}/{name}`, and the parameters of their queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from muster.errors import InvalidSpec, NotFound

BAD_REQUEST = "BadRequest"
UNKNOWN_ROUTE = "UnknownEndpoint"
_MAX_QUERY = 4096  # characters


class Route(Protocol):
    """`path` may have parts such as `{name}`, which match one segment and become parameters; `parameters` are those of
    the query."""

    @property
    def path(self) -> str: ...

    @property
    def parameters(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Route)


def find_route(routes: Iterable[R], target: str) -> tuple[R, dict[str, str]]:
    """The route of a URL's path and query, and its parameters by name. Raises `NotFound` if there is none,
    `InvalidSpec` BadRequest for an unknown or repeated parameter."""
    url = split_url(target)
    for route in routes:
        values = _match(route.path, url.path)
        if values is not None:
            return route, query_values(url.query, route.parameters) | values
    raise NotFound(f"there is no {url.path[:200]!r}", reason=UNKNOWN_ROUTE)


def split_url(target: str) -> SplitResult:
    """The parts of a URL. Raises `InvalidSpec` BadRequest."""
    try:
        return urlsplit(target)
    except ValueError as error:
        raise InvalidSpec(f"the URL {target[:200]!r} is invalid: {error}", reason=BAD_REQUEST) from error


def query_values(query: str, valid: Sequence[str], ignored: Sequence[str] = ()) -> dict[str, str]:
    """The parameters of a query by name. Raises `InvalidSpec` BadRequest for one that is neither valid nor ignored, and
    for a repeated one."""
    if len(query) > _MAX_QUERY:
        raise bad_parameter("query", f"must be at most {_MAX_QUERY} characters; got {len(query)}")
    values: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in (*valid, *ignored):
            raise bad_parameter(name[:80], f"is not a parameter; valid: {', '.join(valid) or 'none'}")
        if name in values:
            raise bad_parameter(name, f"must be given once; got {values[name][:80]!r} and more")
        values[name] = value
    return values


def bad_parameter(name: str, problem: str) -> InvalidSpec:
    """The error for a parameter of a request."""
    return InvalidSpec(f"{name}: {problem}", field=name, reason=BAD_REQUEST)


def _match(pattern: str, path: str) -> dict[str, str] | None:
    """The parameters in a URL's path; None if it does not match."""
    parts, found = pattern.split("/"), path.split("/")
    if len(parts) != len(found):
        return None
    values: dict[str, str] = {}
    for part, value in zip(parts, found, strict=True):
        if part.startswith("{") and value:
            values[part.strip("{}")] = unquote(value)
        elif part != value:
            return None
    return values
