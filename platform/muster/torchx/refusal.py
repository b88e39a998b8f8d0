"""How bad input reaches a person through `torchx run`.

TorchX prints a ComponentValidationException as an error and ends with exit code 1; anything else ends in a traceback
whose last line only is meant for people. So whatever refuses a submission is turned into one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchx.specs.finder import ComponentValidationException

from muster.errors import ClusterError, MusterError


class SubmissionRefused(ComponentValidationException, ValueError):  # type: ignore[misc]  # TorchX is not typed
    """The app, its options or this cluster forbid the submission; the text names the field, the value and a remedy."""


class WatchEnded(ComponentValidationException, ClusterError):  # type: ignore[misc]  # TorchX is not typed
    """The cluster went away while a job was watched, which goes on or not as the text says."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what Muster refuses into what TorchX prints."""
    try:
        yield
    except MusterError as error:
        raise SubmissionRefused(str(error)) from error
