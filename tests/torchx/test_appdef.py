"""An AppDef and its options become one TrainingJob."""

from __future__ import annotations

import re

import pytest
from tests.torchx.torchrun_components import TORCHRUN, TORCHRUN_COMPONENTS
from torchx.components import dist, utils
from torchx.specs import AppDef, BindMount, Resource, Role, VolumeMount, macros

from muster.api.spec import FailureRule, TopologyRequest, TraceRequest
from muster.local.environment import expand_references
from muster.torchx.appdef import app_id, split_app_id, to_training_job, torchrun_notices
from muster.torchx.errors import SubmissionRefused
from muster.torchx.local import to_yaml
from muster.torchx.status import describe_response
from muster_components import train


def app(**fields: object) -> AppDef:
    """An app of one role; `fields` replace the role's."""
    role = Role(name="trainer", image="img", entrypoint="python", resource=Resource(cpu=2, gpu=0, memMB=1024))
    for name, value in fields.items():
        setattr(role, name, value)
    return AppDef(name="app", roles=[role])


def test_replicas_do_not_make_the_job_longer() -> None:
    small, large = (to_yaml(to_training_job(app(num_replicas=n), "a", {})) for n in (1, 100_000))
    assert len(large) - len(small) == len("100000") - len("1")


def test_a_role_keeps_command_environment_and_resources() -> None:
    described = app(
        args=["train.py", "--lr", "0.1"],
        env={"A": "1"},
        min_replicas=1,
        num_replicas=4,
        resource=Resource(cpu=8, gpu=4, memMB=2048, devices={"vpc.amazonaws.com/efa": 2}),
        port_map={"tensorboard": 6006},
    )
    role = to_training_job(described, "a", {}).spec.roles[0]
    container = role.template.spec.containers[0]
    assert (role.name, role.replicas, role.min_replicas) == ("trainer", 4, 1)
    assert (container.image, container.command, container.args) == ("img", ["python"], ["train.py", "--lr", "0.1"])
    assert [(variable.name, variable.value) for variable in container.env] == [("A", "1")]
    assert container.resources.requests == {
        "cpu": "8", "memory": "2048Mi", "nvidia.com/gpu": "4", "vpc.amazonaws.com/efa": "2",
    }  # fmt: skip
    assert container.resources.limits == {"memory": "2048Mi", "nvidia.com/gpu": "4", "vpc.amazonaws.com/efa": "2"}
    assert container.ports == [{"name": "tensorboard", "containerPort": 6006}]


def test_unset_resources_of_torchx_are_not_requested() -> None:
    role = to_training_job(
        app(resource=Resource(cpu=-1, gpu=-1, memMB=-1), num_replicas=2, min_replicas=2), "a", {}
    ).spec.roles[0]
    assert role.template.spec.containers[0].resources.requests == {}
    assert role.min_replicas is None


def test_names_that_kubernetes_does_not_take_are_changed() -> None:
    assert to_training_job(app(name="Train_GPT"), "a", {}).spec.roles[0].name == "train-gpt"


def test_the_whole_gang_restarts_as_often_as_the_most_patient_role() -> None:
    described = app(max_retries=2)
    described.roles.append(Role(name="reader", image="", entrypoint="cat", max_retries=5))
    assert to_training_job(described, "a", {}).spec.failure_policy.max_restarts == 5


def test_options_of_the_command_line_win_over_metadata() -> None:
    described = app()
    described.metadata = {
        "muster.dev/queue": "from-app", "muster.dev/priority": "3", "muster.dev/max-runtime": "2h",
        "muster.dev/flavors": '["h200", "a100"]', "muster.dev/topology": "block:rack", "muster.dev/grace": "90s",
        "muster.dev/trace-steps": "20:25", "muster.dev/trace-ranks": "0,3", "muster.dev/ttl": "1d",
        "muster.dev/trace-every": "500", "muster.dev/trace-when-slower": "1.5",
        "muster.dev/failure-rules": '[{"onExitCodes": [42], "action": "FailJob"}]', "other": "ignored",
    }  # fmt: skip
    spec = to_training_job(described, "a", {"queue": "from-cfg", "stall_timeout": "30m", "priority": None}).spec
    assert (spec.queue, spec.priority, spec.max_runtime_seconds, spec.stall_timeout_seconds) == (
        "from-cfg",
        3,
        7200,
        1800,
    )
    assert (spec.flavors, spec.topology) == (["h200", "a100"], TopologyRequest(required="block", preferred="rack"))
    assert spec.trace == TraceRequest(start_step=20, steps=5, ranks=[0, 3], every=500, when_slower=1.5)
    assert spec.failure_policy.rules == [FailureRule(on_exit_codes=[42], action="FailJob")]
    assert (spec.roles[0].template.spec.termination_grace_period_seconds, spec.ttl_seconds_after_finished) == (
        90,
        86_400,
    )


def test_an_empty_option_takes_back_what_the_app_asks_for() -> None:
    described = app()
    described.metadata = {"muster.dev/trace-steps": "20:25"}
    assert to_training_job(described, "a", {"trace_steps": ""}).spec.trace is None


def test_the_option_trace_steps_is_refused_where_nothing_would_record_a_trace() -> None:
    described = TORCHRUN("--lr", "0.1", script="train.py", j="1x2")
    with pytest.raises(SubmissionRefused, match=re.escape("trace_steps: '20:25' would record nothing")) as refused:
        to_training_job(described, "a", {"trace_steps": "20:25"})
    for wanted in ("muster.train.script", "muster_components.trainer.instrument", "role 'train'", "'bash'"):
        assert wanted in str(refused.value)
    assert to_training_job(described, "a", {"trace_steps": ""}).spec.trace is None


def test_the_option_trace_steps_is_refused_after_the_last_step_of_the_trainer() -> None:
    described = train.fsdp(model="gpt:10m", data="DIR", steps=10)
    with pytest.raises(SubmissionRefused, match=re.escape("which has --steps 10; got '11:13'")):
        to_training_job(described, "a", {"trace_steps": "11:13"})
    assert to_training_job(described, "a", {"trace_steps": "10:13"}).spec.trace == TraceRequest(start_step=10, steps=3)


def test_ranks_to_trace_without_steps_to_trace_are_refused() -> None:
    described = train.fsdp("--trace_ranks", "0", model="gpt:10m", data="DIR")
    with pytest.raises(SubmissionRefused, match="--trace_ranks 0 requires --trace_steps"):
        to_training_job(described, "a", {})
    assert to_training_job(described, "a", {"trace_steps": "10:13"}).spec.trace is not None
    described.roles[0].env["MUSTER_TRACE_STEPS"] = "10:13"
    assert to_training_job(described, "a", {}).spec.trace is None


@pytest.mark.parametrize("name", TORCHRUN_COMPONENTS)
def test_a_grace_period_that_torchrun_does_not_use_is_a_notice(name: str) -> None:
    described = getattr(dist, name)("--lr", "0.1", script="train.py", j="1x2")
    assert torchrun_notices(to_training_job(described, "a", {})) == []
    (notice,) = torchrun_notices(to_training_job(described, "a", {"grace": "2m"}))
    assert "torchrun kills its processes 30 s after SIGTERM" in notice
    assert "which is 120 s" in notice
    assert torchrun_notices(to_training_job(train.script(script="train.py"), "a", {"grace": "2m"})) == []


def test_a_role_that_is_elastic_itself_needs_a_trainer_that_saves_checkpoints() -> None:
    trainer = ["-m", "muster_components.trainer", "--model", "gpt:10m", "--data", "DIR", "--keep", "0"]
    with pytest.raises(SubmissionRefused, match="min_replicas: --keep must be at least 1 in an elastic job"):
        to_training_job(app(args=trainer, min_replicas=1, num_replicas=2), "a", {})
    assert to_training_job(app(args=trainer, num_replicas=2), "a", {}).spec.roles[0].replicas == 2


@pytest.mark.parametrize(
    "described",
    [
        TORCHRUN("train.py", "--lr", "0.1", m="muster_components.trainer.instrument", j="1x2"),
        app(args=["-m", "muster_components.trainer", "--model", "gpt:10m"]),
        app(entrypoint="sh", args=["-c", "exec python -m muster_components.trainer.instrument train.py"]),
        train.script("--lr", "0.1", script="train.py"),
        train.fsdp(model="gpt:10m", data="DIR"),
    ],
)
def test_the_option_trace_steps_is_taken_where_muster_records_traces(described: AppDef) -> None:
    assert to_training_job(described, "a", {"trace_steps": "20:25"}).spec.trace == TraceRequest(start_step=20, steps=5)


@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        ({"max_runtime": "2x"}, "max_runtime: '2x' must be a duration such as 2h"),
        ({"trace_steps": "25:20"}, "trace_steps: '25:20' must have END above FIRST"),
        ({"queue": "No Such"}, "--queue or -cfg queue: must consist of lower-case letters"),
        ({"priority": 2**40}, "--priority or -cfg priority: must be at most 2147483647; got 1099511627776"),
        ({"max_runtime": "9999d"}, "--max_runtime or -cfg max_runtime: must be at most 31622400; got 863913600"),
        ({"flavors": ["A B"]}, "-cfg flavors: must consist of lower-case letters"),
    ],
)
def test_a_bad_option_is_named_with_what_would_be_right(cfg: dict[str, object], expected: str) -> None:
    with pytest.raises(SubmissionRefused, match=re.escape(expected)):
        to_training_job(app(), "a", cfg)


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (
            train.fsdp(model="gpt:10m", data="DIR", max_runtime="2hours"),
            "--max_runtime or metadata muster.dev/max-runtime: '2hours' must be a duration",
        ),
        (
            train.fsdp(model="gpt:10m", data="DIR", priority="high"),  # type: ignore[arg-type]  # as TorchX passes it
            "--priority or metadata muster.dev/priority: 'high' must be an integer",
        ),
    ],
)
def test_a_bad_argument_of_a_component_is_named(described: AppDef, expected: str) -> None:
    with pytest.raises(SubmissionRefused, match=re.escape(expected)):
        to_training_job(described, "a", {})


def test_a_key_that_muster_does_not_know_is_refused_with_the_nearest() -> None:
    described = app()
    described.metadata = {"muster.dev/max_runtime": "2h"}
    with pytest.raises(SubmissionRefused, match=re.escape("did you mean 'muster.dev/max-runtime'")):
        to_training_job(described, "a", {})


def test_negative_and_absurd_sizes_are_refused_by_option() -> None:
    with pytest.raises(SubmissionRefused, match=re.escape("number of replicas (-j): must be at least 1; got 0")):
        to_training_job(app(num_replicas=0), "a", {})
    with pytest.raises(
        SubmissionRefused, match=re.escape("number of replicas (-j): must be at most 100000; got 1000000")
    ):
        to_training_job(app(num_replicas=10**6), "a", {})
    with pytest.raises(SubmissionRefused, match=re.escape("-cfg min_replicas: must be at most replicas (2); got 5")):
        to_training_job(app(num_replicas=2, min_replicas=5), "a", {})


def test_macros_mean_the_job_its_replica_and_the_place_of_rank_0() -> None:
    described = app(args=[f"{macros.app_id} {macros.replica_id} {macros.rank0_env} {macros.img_root}"])
    container = (
        to_training_job(described, "a-1", {"namespace": "team"}, img_root="/here")
        .spec.roles[0]
        .template.spec.containers[0]
    )
    assert container.args == ["team:a-1 $(MUSTER_REPLICA) MUSTER_RANK0_HOST /here"]


def doubled(text: str) -> str:
    """The text as it is written in an AppDef: TorchX replaces `$$` with `$` when it substitutes macros."""
    return text.replace("$$", "$$$$")


@pytest.mark.parametrize(
    ("text", "expanded"), [("$(HOST)", "node-1"), ("$$(HOST)", "$(HOST)"), ("a $$$(HOST)", "a $node-1")]
)
def test_references_to_variables_are_expanded_as_by_kubernetes(text: str, expanded: str) -> None:
    described = app(args=[doubled(text)], env={"V": doubled(text)})
    container = to_training_job(described, "a", {}).spec.roles[0].template.spec.containers[0]
    for written in (container.args[0], container.env[0].value or ""):
        assert expand_references(written, {"HOST": "node-1"}) == expanded
    read_back = describe_response(to_training_job(described, "a", {}), "").roles[0]
    assert (read_back.args, read_back.env) == ([text], {"V": text})


def test_a_dollar_before_the_replica_macro_is_literal() -> None:
    job = to_training_job(app(args=[f"$${macros.replica_id}"]), "a", {})
    (written,) = job.spec.roles[0].template.spec.containers[0].args
    assert expand_references(written, {"MUSTER_REPLICA": "7"}) == "$7"
    assert describe_response(job, "").roles[0].args == [f"${macros.replica_id}"]


@pytest.mark.parametrize("text", ["$(date)", "cost: 5$", "$", "a$(", "$HOME", "\\$(x)", "$$", "pid $$, $$$ and 5$$"])
def test_other_dollar_signs_are_literal(text: str) -> None:
    described = app(entrypoint=text, args=[doubled(text)], env={"V": doubled(text)})
    container = to_training_job(described, "a", {}).spec.roles[0].template.spec.containers[0]
    written = (container.command[0], container.args[0], container.env[0].value or "")
    assert {expand_references(part, {"MUSTER_REPLICA": "7"}) for part in written} == {text}
    read_back = describe_response(to_training_job(described, "a", {}), "").roles[0]
    assert (read_back.entrypoint, read_back.args, read_back.env) == (text, [text], {"V": text})


@pytest.mark.parametrize("component", TORCHRUN_COMPONENTS)
def test_torchxs_own_components_for_torchrun_work_unchanged(component: str) -> None:
    described = getattr(dist, component)(script="train.py", j="2x2")
    job = to_training_job(described, "train-1", {"queue": "research"})
    role = job.spec.roles[0]
    container = role.template.spec.containers[0]
    assert (job.spec.queue, role.name, role.replicas, role.min_replicas) == ("research", "train", 2, None)
    assert container.command == ["bash"]
    assert "--rdzv_endpoint ${MUSTER_RANK0_HOST:=localhost}:29500 --rdzv_id 'train-1'" in container.args[1]


def test_utils_echo_of_torchx_works_unchanged() -> None:
    container = to_training_job(utils.echo("hi"), "echo-1", {}).spec.roles[0].template.spec.containers[0]
    assert (container.command, container.args) == (["echo"], ["hi"])


def test_mounts_and_capabilities_become_volumes_and_labels() -> None:
    described = app(
        mounts=[BindMount(src_path="/data", dst_path="/in", read_only=True), VolumeMount(src="claim", dst_path="/out")],
        resource=Resource(cpu=1, gpu=0, memMB=1, capabilities={"node.kubernetes.io/instance-type": "p5.48xlarge"}),
    )
    pod = to_training_job(described, "a", {}).spec.roles[0].template.spec
    assert pod.volumes == [
        {"name": "mount-0", "hostPath": {"path": "/data"}},
        {"name": "mount-1", "persistentVolumeClaim": {"claimName": "claim"}},
    ]
    assert pod.containers[0].volume_mounts == [
        {"name": "mount-0", "mountPath": "/in", "readOnly": True},
        {"name": "mount-1", "mountPath": "/out", "readOnly": False},
    ]
    assert pod.node_selector == {"node.kubernetes.io/instance-type": "p5.48xlarge"}


def test_an_app_id_contains_the_namespace_unless_it_is_the_default() -> None:
    assert app_id("a-1", "default") == "a-1"
    assert [split_app_id(text) for text in ("a-1", "team:a-1")] == [("a-1", "default"), ("a-1", "team")]
