"""The `muster` command line.

Each command queries the cluster, prints a table or JSON, and ends with a documented exit code. `muster.cli.views`
renders the output. Heavy modules are imported by the command that needs them, so that `muster --help` starts fast.
"""

from __future__ import annotations


def main() -> None:
    """The entry point of the `muster` script."""
    from muster.api import descriptions
    from muster.cli import app

    descriptions.wanted = False
    app.main()
