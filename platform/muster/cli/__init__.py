"""The `muster` command: verbs only.

Every verb asks the cluster, shows the answer as a table or as JSON, and ends with an exit code that scripts can use.
What is shown is built in `muster.cli.views`, what is heavy is imported by the verb that needs it: `muster --help` must
answer at once.
"""

from __future__ import annotations


def main() -> None:
    """The entry point of the `muster` script."""
    from muster.cli import app

    app.main()
