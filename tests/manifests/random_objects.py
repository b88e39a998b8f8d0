"""Objects as chance has them, about half of them right: what pydantic and the API server are to agree on."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.manifests.objects import flavor, job, queue

AMOUNTS = st.one_of(
    st.integers(-2, 2**62 + 2),
    st.integers(-1, 5_000_000).map(lambda number: f"{number}m"),
    st.builds("{}{}".format, st.integers(2**50, 2**70), st.sampled_from(["m", "000m", "u", "000000u", "n"])),
    st.builds("{}.{}".format, st.integers(0, 2**62), st.from_regex(r"0{0,9}[0159]{0,3}", fullmatch=True)),
    st.builds(
        "{}{}".format, st.integers(0, 5000), st.sampled_from(["", "m", "k", "Mi", "Gi", "Pi", "E", "Ei", "K", "e3"])
    ),
    st.sampled_from(["", "1.", ".5", "+1", "1e18", "1E3", "1e19", "0.1", "5 ", "-0", "Ki", "1e-3", "1e3k"]),
)
NAMES = st.one_of(
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["", "-a", "a-", "A", "a.b", "a_b", "a" * 52, "a" * 53]),
)
SMALL = st.integers(-1, 3)
TOLERATIONS = st.fixed_dictionaries(
    {}, optional={"key": st.just("a"), "operator": st.sampled_from(["Equal", "Exists", "Lt"]), "effect": st.just("")}
)
ROLES = st.builds(
    lambda name, sizes, amounts, tolerations, essential, whole: {
        "name": name,
        **sizes,
        "essential": essential,
        "template": {
            "spec": {"containers": [{"resources": {"limits": amounts}}], "tolerations": tolerations, **whole},
        },
    },
    NAMES,
    st.fixed_dictionaries(
        {}, optional={"replicas": st.one_of(SMALL, st.integers(99_990, 100_001)), "minReplicas": SMALL}
    ),
    st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), AMOUNTS, max_size=2),
    st.lists(TOLERATIONS, max_size=2),
    st.booleans(),
    st.fixed_dictionaries(
        {}, optional={"resources": st.fixed_dictionaries({"requests": st.dictionaries(st.just("cpu"), AMOUNTS)})}
    ),
)
JOBS = st.builds(
    lambda name, roles, more: job(name, roles=roles, **more),
    st.from_regex(r"[a-z]{1,50}", fullmatch=True),
    st.lists(ROLES, max_size=2),
    st.fixed_dictionaries(
        {},
        optional={
            "queue": NAMES,
            "priority": st.sampled_from([0, 1, 2**31 - 1, 2**31]),
            "priorityClassName": st.sampled_from(["high", "High"]),
            "maxRuntimeSeconds": SMALL,
            "trace": st.fixed_dictionaries({"startStep": SMALL, "steps": SMALL}),
        },
    ),
)
QUOTAS = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), AMOUNTS, max_size=2)
QUEUES = st.builds(
    lambda resources, more: queue(resources=resources, **more),
    st.lists(
        st.fixed_dictionaries(
            {"flavor": st.sampled_from(["a", "b", "B"])},
            optional={"guaranteed": QUOTAS, "limit": QUOTAS, "lend": QUOTAS},
        ),
        max_size=2,
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "weight": st.sampled_from([0, 0.5, 1, 10**6, 10**6 + 1]),
            "namespaceSelector": st.builds(
                lambda line: {"matchExpressions": [line]},
                st.fixed_dictionaries(
                    {"key": st.just("a"), "operator": st.sampled_from(["In", "NotIn", "Exists", "Is"])},
                    optional={"values": st.lists(st.just("b"), max_size=1)},
                ),
            ),
        },
    ),
)
FLAVORS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["rack", "block", "Rack"]), "nodeLabel": st.sampled_from(["a", "b"])}
    ),
    max_size=3,
).map(lambda levels: flavor(topology=levels))

ANY = st.one_of(JOBS, JOBS, QUEUES, FLAVORS)
