"""The pages, in the order of the navigation: one module each, with a template of the same name."""

from __future__ import annotations

from muster.dashboard.page import Document, Page
from muster.dashboard.pages import job, jobs, nodes, overview, pending, preemptions, timeline, usage

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    pending.PAGE,
    jobs.PAGE,
    job.PAGE,
    timeline.PAGE,
    nodes.PAGE,
    nodes.NODE_PAGE,
    preemptions.PAGE,
    usage.PAGE,
)
DOCUMENTS: tuple[Document, ...] = (job.REPORT,)
