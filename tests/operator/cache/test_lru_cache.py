"""The LRU cache is bounded in number and bytes."""

from __future__ import annotations

import gc
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.operator.caches import new_cache
from tests.operator.objects import job_document, read, template

from muster.api import spec
from muster.kube.objects import RawCustomObject
from muster_operator.cache.lru_cache import LRUCache
from muster_operator.cache.specs import SpecCache
from muster_operator.pod_builder.collector import CollectorSidecarConfig


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    kept = LRUCache[str, int](max_entries=2)
    kept.put("a", 1, 1)
    kept.put("b", 2, 1)
    assert kept.get("a") == 1
    kept.put("c", 3, 1)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (1, None, 3)


def test_a_value_larger_than_the_limit_is_not_cached() -> None:
    kept = LRUCache[str, int](max_bytes=10)
    kept.put("a", 1, 11)
    assert (kept.get("a"), len(kept), kept.bytes) == (None, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40))))
def test_neither_limit_is_ever_exceeded(puts: list[tuple[int, int]]) -> None:
    kept, sizes = LRUCache[int, int](max_entries=3, max_bytes=60), dict[int, int]()
    for key, size in puts:
        kept.put(key, size, size)
        sizes[key] = size
        assert len(kept) <= 3
        assert kept.bytes <= 60
        assert kept.get(key) == size, "the newest is there"
    assert kept.bytes == sum(size for key, size in sizes.items() if kept.get(key) is not None)


def test_texts_of_deleted_jobs_do_not_accumulate() -> None:
    seen, _ = new_cache()
    longest = "x" * 200_000
    for number in range(800):  # 160 MB
        document: dict[str, Any] = job_document(f"j{number}", number + 1)
        document["spec"]["roles"][0]["template"]["spec"]["containers"][0]["args"] = [f"{number}{longest}"]
        one = read(RawCustomObject, document)
        seen.jobs.on_upsert(one)
        one.metadata.resource_version = str(10_000 + number)
        seen.jobs.on_delete(one)
    specs = seen.jobs._reader._specs
    assert specs._parsed.bytes <= 32 * 2**20
    assert seen.templates._texts.bytes <= 128 * 2**20
    assert len(seen.templates._known) <= len(specs._parsed)
    assert 0 < len(specs._parsed) < 100


def test_effective_pods_of_a_spec_are_forgotten_with_the_spec() -> None:
    specs = SpecCache(CollectorSidecarConfig())
    wanted = specs.read(json.dumps({"roles": [{"name": "trainer", "template": template()}]}).encode(), b"digest").spec
    pods = {"trainer": spec.PodSpec.model_validate(template()["spec"])}
    assert specs.with_effective_pods(wanted, pods) is specs.with_effective_pods(wanted, pods)
    assert len(specs._effective) == 1
    specs._parsed = LRUCache()
    del wanted
    gc.collect()
    assert specs._effective == {}
