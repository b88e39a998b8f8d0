"""Pages as HTML: a whole document, or the part of it that changes.

Names, messages and everything else that comes from a cluster is not trusted: Jinja2 escapes it, and the response's
Content-Security-Policy allows neither inline scripts nor inline styles. Widths of bars are therefore attributes of SVG
elements.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from muster.dashboard.page import Page, PageRequest, job_link, link, node_link
from muster.errors import InvalidSpec, MusterError, NotFound, Refused
from muster.kinds.trainingjob.stops import describe_stop
from muster.text import (
    format_bytes,
    format_duration,
    format_hours,
    format_resource,
    hours_unit,
    rank_list,
    sanitize,
    short_resource_name,
)
from muster.visibility.columns import pods_text, run_time_s
from muster.visibility.types import ItemMeta, JobSummary

_STYLE = re.compile(r' style="max-width:(\d+)px"')
_TIMES = re.compile(r"(<time [^>]*>)[^<]*</time>")


def relative_time(at: float, now: float) -> Markup:
    """`3m12s ago` or `in 2h05m`; the page's script keeps it current."""
    text = f"in {format_duration(at - now)}" if at - now >= 1 else f"{format_duration(now - at)} ago"
    return Markup('<time datetime="{}" data-form="relative">{}</time>').format(_iso(at), text)


def clock_time(at: float, now: float) -> Markup:
    """`14:03:10 (in 2m10s)`, with the date unless it is today."""
    then, today = datetime.fromtimestamp(at).astimezone(), datetime.fromtimestamp(now).astimezone()
    shown = then.strftime("%H:%M:%S") if then.date() == today.date() else then.strftime("%Y-%m-%d %H:%M")
    return Markup('{} <span class="quiet">({})</span>').format(shown, relative_time(at, now))


def tick_time(at: float, now: float) -> str:
    """`14:03`, or `Nov 23 14:03` on another day."""
    then, today = datetime.fromtimestamp(at).astimezone(), datetime.fromtimestamp(now).astimezone()
    return then.strftime("%H:%M" if then.date() == today.date() else "%b %d %H:%M")


def utc_time(at: float) -> str:
    """`2026-11-23 14:00`, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def elapsed(since: float, now: float) -> Markup:
    """`3m12s` since a time; the page's script keeps it current."""
    text = format_duration(max(0.0, now - since))
    return Markup('<time datetime="{}" data-form="elapsed">{}</time>').format(_iso(since), text)


def chart(svg: str) -> Markup:
    """A chart of `muster.tracing`, which escapes its own texts. Its width becomes an attribute: the policy forbids
    inline styles."""
    return Markup(_STYLE.sub(r' width="\1"', svg, count=1))


def run_time(job: JobSummary, now: float) -> Markup:
    """How long a job has run in all its attempts; empty if it has not."""
    ran_s = run_time_s(job, now)
    if ran_s is None:
        return Markup()
    runs = job.started_at is not None and job.finished_at is None
    return elapsed(now - ran_s, now) if runs else Markup(format_duration(ran_s))


def _cli_name(job: ItemMeta, is_this_host: bool) -> str:
    """What commands call a job: on a cluster with its namespace, since that of the user's context is not known."""
    namespace = job.namespace or "default"
    return job.name if is_this_host and namespace == "default" else f"{namespace}/{job.name}"


def _iso(at: float) -> str:
    at = round(at, 3)  # an age subtracted from now is not exact, and unchanged pages must be equal
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _sanitized(value: Any) -> Any:
    """Text without control characters and bidirectional marks, which could make a name look like another."""
    return sanitize(value) if type(value) is str else value


class Renderer:
    """`where` names the cluster in the header of all pages. `command` is `muster` with the options that select this
    cluster; empty: this host, which needs none."""

    def __init__(self, pages: tuple[Page, ...], where: str, command: str = "") -> None:
        self.pages = pages
        self._where = where
        self._environment = Environment(
            loader=PackageLoader("muster.dashboard"),
            autoescape=True,
            finalize=_sanitized,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "relative_time": relative_time,
            "describe_stop": describe_stop,
            "clock_time": clock_time,
            "tick_time": tick_time,
            "utc_time": utc_time,
            "elapsed": elapsed,
            "pods": pods_text,
            "run_time": run_time,
            "bytes": format_bytes,
            "rank_list": rank_list,
            "chart": chart,
            "duration": format_duration,
            "amount": format_resource,
            "short_resource": short_resource_name,
            "hours": format_hours,
            "hours_unit": hours_unit,
        }
        self._environment.globals |= {
            "link": link,
            "job_link": job_link,
            "node_link": node_link,
            "muster": command or "muster",
            "cli_name": partial(_cli_name, is_this_host=not command),
        }

    def content(self, page: Page, request: PageRequest) -> tuple[HTTPStatus, str]:
        """The part of a page that changes; of an error, what it is. A bug does not end the updates of others."""
        try:
            data = page.data(request)
            return HTTPStatus.OK, self._render(page.template, now=request.now, source=request.reader.source, **data)
        except MusterError as error:
            return self.error_content(error)
        except Exception as error:
            message = f"this is a bug in Muster: {type(error).__name__}: {error}"
            return HTTPStatus.INTERNAL_SERVER_ERROR, self._render("error.html", message=message, reason="Bug")

    def error_content(self, error: MusterError) -> tuple[HTTPStatus, str]:
        """The same for an error, with the status of its kind."""
        return error_status(error), self._render("error.html", message=str(error), reason=error.reason)

    def document(self, content: str, page: Page | None, target: str, now: float, user: str = "") -> str:
        """The whole page. `target`: its path and query. Without `page`, of an error, it is not updated. `user`: whose
        rights it shows, if that is not the one who started the server."""
        return self._render(
            "base.html",
            content=Markup(content),  # rendered above
            page=page,
            pages=[one for one in self.pages if one.in_navigation],
            target=target,
            where=self._where,
            user=user,
            now=now,
        )

    def plain(self, template: str, **data: str) -> str:
        """A page without content of the cluster."""
        return self._render(template, **data)

    def _render(self, template: str, **data: Any) -> str:
        return self._environment.get_template(template).render(data)


def error_status(error: MusterError) -> HTTPStatus:
    """The HTTP status of an error."""
    if isinstance(error, InvalidSpec):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, NotFound):
        return HTTPStatus.NOT_FOUND
    return HTTPStatus.FORBIDDEN if isinstance(error, Refused) else HTTPStatus.BAD_GATEWAY


def without_ages(content: str) -> str:
    """The content without the text of times that the page's script keeps current: what is compared for changes."""
    return _TIMES.sub(r"\1", content)
