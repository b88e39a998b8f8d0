"""The default flavor and queue, so that a first job needs no set-up."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from muster import spec
from muster.cluster import NodeView
from muster.local.store import SqliteStore
from muster.local.virtual_nodes import BLOCK_LABEL, HOSTNAME_LABEL, LOCAL_LABEL, RACK_LABEL

_DEFAULT_QUEUE_SETTING = "default_queue"  # setting: the default queue's spec as written here
DEFAULT_FLAVOR, DEFAULT_QUEUE = "local", "default"


def ensure_default_objects(store: SqliteStore, nodes: Iterable[NodeView], now: float) -> None:
    """Create flavor `local` and queue `default` at the first start only, so that users may delete or change them.

    The queue guarantees all pod slots and limits no other resource. While it is unchanged, it is updated with the
    nodes.
    """
    slots = str(sum(node.allocatable.get("pods") for node in nodes))
    requested = spec.QueueSpec(
        namespace_selector=spec.LabelSelector(),
        resources=[spec.FlavorQuota(flavor=DEFAULT_FLAVOR, guaranteed={"pods": slots})],
    )
    written = store.settings.get(_DEFAULT_QUEUE_SETTING)
    with store.transaction():
        if written is None:
            store.put(spec.Flavor(metadata=_metadata(DEFAULT_FLAVOR, now), spec=_flavor()))
            store.put(spec.Queue(metadata=_metadata(DEFAULT_QUEUE, now), spec=requested))
        elif (queue := store.queues.get(DEFAULT_QUEUE)) is None or queue.spec.model_dump_json() != written:
            return
        elif queue.spec != requested:
            metadata = queue.metadata.model_copy(update={"generation": queue.metadata.generation + 1})
            store.put(queue.model_copy(update={"spec": requested, "metadata": metadata}))
        store.put_setting(_DEFAULT_QUEUE_SETTING, requested.model_dump_json())


def _flavor() -> spec.FlavorSpec:
    levels = (("block", BLOCK_LABEL), ("rack", RACK_LABEL), ("host", HOSTNAME_LABEL))
    topology = [spec.TopologyLevel(name=name, node_label=label) for name, label in levels]
    return spec.FlavorSpec(node_labels={LOCAL_LABEL: "true"}, topology=topology)


def _metadata(name: str, now: float) -> spec.ObjectMeta:
    return spec.ObjectMeta(name=name, uid=uuid.uuid4().hex, creation_timestamp=now)
