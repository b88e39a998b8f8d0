"""The pages, in the order of the navigation; each has a template."""

from __future__ import annotations

from muster.dashboard.page import Document, Page
from muster.dashboard.pages import job, jobs, nodes, timeline, usage

PAGES: tuple[Page, ...] = (
    jobs.OVERVIEW_PAGE,
    jobs.PENDING_PAGE,
    jobs.JOBS_PAGE,
    job.PAGE,
    job.REPORT_PAGE,
    timeline.PAGE,
    nodes.PAGE,
    nodes.NODE_PAGE,
    jobs.PREEMPTIONS_PAGE,
    usage.PAGE,
)
DOCUMENTS: tuple[Document, ...] = (job.REPORT,)
