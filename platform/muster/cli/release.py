"""The command release: objects of other kinds run without Muster again."""

from __future__ import annotations

from dataclasses import asdict

import click

from muster.cli.options import connect, default_list_namespace, json_option, namespace_option
from muster.cli.output import console, print_json
from muster.errors import Refused


@click.command()
@namespace_option
@click.option("--all-namespaces", "-A", is_flag=True, help="Objects of all namespaces.")
@click.option("--dry-run", is_flag=True, help="Only say which objects have gates.")
@json_option
def release(namespace: str | None, all_namespaces: bool, dry_run: bool, as_json: bool) -> None:
    """Take Muster's scheduling gates out of Jobs, JobSets and TrainJobs before an uninstall. Stop the operator first:
    it would write them again. The objects stay suspended."""
    from muster.cluster_client.client import KubernetesClusterClient

    client = connect()
    if not isinstance(client, KubernetesClusterClient):
        raise Refused(
            "on this host no objects of other kinds queue; select a cluster with --context", reason="NoCluster"
        )
    of = None if all_namespaces else namespace or default_list_namespace()
    rows = []
    for one in client.release_objects(of, dry_run=dry_run):
        rows.append(asdict(one))
        if not as_json:
            console().print(f"{one.kind.lower()} {one.namespace}/{one.name} {one.result}", soft_wrap=True)
    if as_json:
        print_json(rows)
    elif not rows:
        print("No object has gates of Muster.")
