"""The command line: defaults, precedence, and errors that name flag, value and valid values."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from muster_components.trainer.__main__ import prepare_environment
from muster_components.trainer.errors import InputError
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.models.recipes import RECIPES, llama_8b, model_config
from muster_components.trainer.models.selection import FactorySource, HuggingFaceSource
from muster_components.trainer.plan import HostCapabilities, TrainPlan, resolve_plan

NEEDED = ("--model", "gpt:10m", "--data", "x")
LAPTOP = HostCapabilities(device="cpu", world_size=2, has_compiler=True, has_bf16=True)
GPUS = HostCapabilities(device="cuda", world_size=2, has_compiler=True, has_bf16=True)


def plan(*flags: str, machine: HostCapabilities = LAPTOP) -> TrainPlan:
    return resolve_plan(parse_train_config([*NEEDED, *flags], {}), machine)


def test_defaults_depend_on_the_device() -> None:
    small, large = plan("--steps", "60"), plan("--steps", "60", machine=GPUS)
    assert (small.seq_len, small.global_batch, small.precision, small.micro_batch) == (128, 16, "fp32", 8)
    assert (large.seq_len, large.global_batch, large.precision, large.micro_batch) == (1024, 64, "bf16", 32)
    assert (small.compile, small.warmup, small.checkpoint_every, small.log_every) == (True, 10, 15, 6)


def test_without_a_compiler_compilation_is_off_by_default() -> None:
    bare = HostCapabilities(device="cpu", world_size=1, has_compiler=False, has_bf16=True)
    assert not plan(machine=bare).compile
    with pytest.raises(InputError, match="--compile requires a C"):
        plan("--compile", machine=bare)


def test_a_backend_other_than_inductor_needs_no_compiler() -> None:
    bare = HostCapabilities(device="cpu", world_size=1, has_compiler=False, has_bf16=True)
    assert plan("--backend", "aot_eager", machine=bare).compile_backend == "aot_eager"
    assert plan("--no_compile", machine=bare).compile_backend is None
    assert plan().compile_backend == "inductor"


GPU = HostCapabilities(device="cuda", world_size=1, has_compiler=True, has_bf16=True)


@pytest.mark.parametrize(
    ("flags", "parameters", "graphed"),
    [
        (("--model", "gpt:1m"), 1_000_000, True),
        (("--model", "gpt:1m", "--no_cuda_graph"), 1_000_000, False),
        (("--model", "gpt:1m", "--no_compile"), 1_000_000, False),
        (("--model", "gpt:1b"), 1_000_000_000, False),
        (("--model", "gpt:1b", "--cuda_graph"), 1_000_000_000, True),
        (("--model", "my.module:factory", "--compile"), 1_000_000, False),
        (("--model", "my.module:factory", "--cuda_graph"), 1_000_000, True),
        (("--model", "gpt:1m", "--backend", "cudagraphs"), 1_000_000, False),
        (("--model", "gpt:1m", "--parallel", "ddp", "--compiled_autograd"), 1_000_000, False),
        (("--model", "nanogpt:10m", "--activation_checkpointing", "full"), 10_000_000, False),
        (("--model", "nanogpt:10m", "--activation_checkpointing", "selective"), 10_000_000, True),
        (("--model", "gpt:1m", "--activation_checkpointing", "full"), 1_000_000, True),
        (("--model", "nanogpt:10m", "--activation_checkpointing", "full", "--no_compile", "--cuda_graph"), 1, True),
    ],
)
def test_steps_are_cuda_graphs_on_one_gpu_if_requested_or_if_a_compiled_recipe_is_small(
    flags: tuple[str, ...], parameters: int, graphed: bool
) -> None:
    assert plan(*flags, machine=GPU).graphs_steps(parameters) is graphed


def test_a_cuda_graph_of_the_step_is_refused_with_a_backend_that_records_its_own() -> None:
    with pytest.raises(InputError, match=r"requires --no_compile or --backend inductor, aot_eager, eager; got cudagr"):
        plan("--cuda_graph", "--backend", "cudagraphs", machine=GPU)


def test_a_cuda_graph_of_compiled_and_recomputed_dropout_is_refused() -> None:
    with pytest.raises(InputError, match="random numbers, which is not captured; use selective, or remove"):
        plan("--model", "nanogpt:10m", "--activation_checkpointing", "full", "--cuda_graph", machine=GPU)


def test_the_global_batch_does_not_depend_on_the_number_of_ranks() -> None:
    for world_size in (1, 2, 3, 5, 16):
        machine = HostCapabilities(device="cpu", world_size=world_size, has_compiler=True, has_bf16=True)
        made = plan("--global_batch", "16", "--micro_batch", "4", machine=machine)
        assert made.global_batch == 16
        assert made.micro_batch * made.gradient_accumulation_steps * world_size >= 16


def test_dashes_and_underscores_are_equivalent() -> None:
    assert plan("--seq-len", "64", "--no-compile", "--global-batch=4") == plan(
        "--seq_len=64", "--no_compile", "--global_batch", "4"
    )


def test_repeated_traces_have_windows_of_equal_distance() -> None:
    trace = parse_train_config(NEEDED, {"MUSTER_TRACE_STEPS": "20:25", "MUSTER_TRACE_EVERY": "100"}).trace
    assert [trace.window(step) for step in (1, 24, 25, 124, 125)] == [
        (20, 25), (20, 25), (120, 125), (120, 125), (220, 225),
    ]  # fmt: skip
    once = parse_train_config([*NEEDED, "--trace_steps", "20:25"], {"MUSTER_TRACE_EVERY": "100"}).trace
    assert (once.window(24), once.window(25)) == ((20, 25), None)


def test_slower_steps_are_traced_if_the_job_says_so() -> None:
    environ = {"MUSTER_TRACE_STEPS": "20:25", "MUSTER_TRACE_WHEN_SLOWER": "1.5"}
    assert parse_train_config(NEEDED, environ).trace.when_slower == 1.5
    assert parse_train_config([*NEEDED, "--trace_when_slower", "2"], environ).trace.when_slower == 2.0
    assert parse_train_config([*NEEDED, "--trace_steps", "20:25"], environ).trace.when_slower is None


def test_flags_take_precedence_over_the_environment_for_traced_steps() -> None:
    environ = {"MUSTER_TRACE_STEPS": "20:25", "MUSTER_TRACE_RANKS": "3,0"}
    parsed = parse_train_config(NEEDED, environ).trace
    assert (parsed.start, parsed.end, parsed.ranks) == (20, 25, (0, 3))
    requested = parse_train_config([*NEEDED, "--trace_steps", "2:3", "--trace_ranks", ""], environ).trace
    assert (requested.start, requested.end, requested.ranks) == (2, 3, ())
    assert not parse_train_config(NEEDED, {}).trace.covers(0)
    assert parse_train_config([*NEEDED, "--trace_ranks", "1"], environ).trace.ranks == (1,)


FLOAT8 = ("--float8", "tensorwise")
HOPPER = HostCapabilities(device="cuda", world_size=2, has_compiler=True, has_bf16=True, has_float8=True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--float8", "fp8"), "--float8: invalid choice: 'fp8' (choose from"),
        (("--float8_emulate",), "--float8_emulate requires --float8 tensorwise or rowwise; got --float8 none"),
        ((*FLOAT8, "--precision", "fp32"), "--float8 tensorwise requires --precision bf16 or auto; got fp32"),
        ((*FLOAT8, "--symmetric_memory"), "use --float8 rowwise, or remove it; got tensorwise"),
        ((*FLOAT8, "--async_tp", "--parallel", "tp=2"), "--async_tp is for matrix products in bf16"),
        ((*FLOAT8, "--compiled_autograd", "--parallel", "ddp"), "--compiled_autograd is for layers in bf16"),
        (
            (*FLOAT8, "--seq_len", "100", "--micro_batch", "3"),
            "requires a multiple of 16 tokens in a micro-batch; got 300; use another --micro_batch or --seq_len",
        ),
    ],
)
def test_what_float8_cannot_do_is_refused(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        plan(*flags, machine=HOPPER)


def test_float8_requires_a_gpu_that_has_it_unless_it_is_emulated() -> None:
    assert plan(*FLOAT8, machine=HOPPER).config.float8.recipe == "tensorwise"
    for machine, where in ((LAPTOP, "on CPUs"), (GPUS, "on this GPU")):
        with pytest.raises(InputError, match=f"requires GPUs of compute capability 8.9 .* use --float8 none {where}"):
            plan(*FLOAT8, machine=machine)
        assert plan(*FLOAT8, "--float8_emulate", machine=machine).config.float8.emulate


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--steps", "0"), "--steps must be at least 1; got 0"),
        (("--json",), "--json prints the plan, and requires --plan NODESxGPUS"),
        (
            ("--reshard", "never", "--parallel", "ddp"),
            "--reshard is for fsdp and hsdp, which gather weights; got --parallel ddp",
        ),
        (("--keep", "0", "--checkpoint_every", "5"), "--keep must be at least 1 with --checkpoint_every 5; got 0"),
        (("--trace_ranks", "0"), "--trace_ranks 0 requires --trace_steps"),
        (("--trace_every", "50"), "--trace_every 50 requires --trace_steps"),
        (("--trace_when_slower", "2"), "--trace_when_slower 2 requires --trace_steps"),
        (
            ("--trace_steps", "1:2", "--trace_when_slower", "1"),
            "--trace_when_slower must be from 1.1 to 100, such as 1.5",
        ),
        (("--compile_cache", "folder", "--no_compile"), "--compile_cache requires compilation; remove --no_compile"),
        (("--symmetric_memory", "--precision", "fp32"), "in bf16; got --parallel fsdp, --precision fp32"),
        (("--steps", "many"), "--steps: must be an integer; got 'many'"),
        (("--seq_len", "4"), "--seq_len must be at least 8; got 4"),
        (("--global_batch", "-3"), "--global_batch must be at least 1; got -3"),
        (("--global_batch", "1"), "--global_batch must be at least the number of ranks, 2; got 1"),
        (("--lr", "0"), "--lr must be finite and above 0; got 0.0"),
        (("--lr", "nan"), "--lr must be finite and above 0; got nan"),
        (("--clip", "inf"), "--clip must be finite and above 0; got inf"),
        (("--weight_decay", "-1"), "--weight_decay must be finite and at least 0; got -1.0"),
        (("--warmup", "100", "--steps", "100"), "--warmup must be less than --steps 100; got 100"),
        (("--keep", "-1"), "--keep must be at least 0; got -1"),
        (("--checkpoint_every", "-1"), "--checkpoint_every must be at least 0; got -1"),
        (("--compiled_autograd",), "--compiled_autograd requires --parallel ddp; got --parallel fsdp"),
        (
            ("--compiled_autograd", "--parallel", "auto"),
            "--compiled_autograd requires --parallel ddp; got --parallel auto; to choose the rest, use --parallel ddp",
        ),
        (("--backend", "eager", "--no_compile"), "--backend eager requires compilation; remove --no_compile"),
        (("--compile_cache", "simplecache::s3://bucket/compile"), "such as s3://bucket/compile, or none; got 'simplec"),
        (("--backend", "cudagraphs", "--parallel", "pp=2"), "which a pipeline (pp=2) does not; use --backend inductor"),
        (
            ("--backend", "cudagraphs", "--parallel", "tp=2", "--micro_batch", "4"),
            "on one data-parallel rank with --precision fp32 use a --micro_batch of 16, or --precision bf16; got",
        ),
        (
            ("--async_tp", "--parallel", "tp=2", "--backend", "eager"),
            "--async_tp requires --backend inductor; got eager",
        ),
        (("--parallel", "fsdp=4"), "--parallel fsdp=4 needs 4 ranks; got 2"),
        (("--parallel", "tp=2", "--seq_len", "33"), "--seq_len must be a multiple of 2 for --parallel tp=2; got 33"),
        (("--parallel", "tp=4"), "--parallel tp=4 requires a multiple of 4 key-value heads; gpt:10m has 6"),
        (("--parallel", "tp=2", "--vocab_size", "257"), "a multiple of 2 tokens in the vocabulary; gpt:10m has 257"),
        (
            ("--parallel", "tp=2", "--activation_checkpointing", "full"),
            "full with --parallel tp=N cannot be compiled by torch; use --activation_checkpointing selective",
        ),
        (
            ("--activation_checkpointing", "some"),
            "must be none, selective, full, auto, or budget:FRACTION with a fraction from 0 to 1, such as budget:0.5",
        ),
        (("--activation_checkpointing", "budget:1.5"), "a fraction from 0 to 1, such as budget:0.5; got 'budget:1.5'"),
        (("--activation_checkpointing", "budget:half"), "such as budget:0.5; got 'budget:half'"),
        (("--activation_checkpointing", "budget:0.5", "--no_compile"), "budget:0.5 requires compilation; use full"),
        (
            ("--activation_checkpointing", "budget:0.5", "--backend", "eager"),
            "budget:0.5 requires compilation with --backend inductor or aot_eager; got eager; use full",
        ),
        (
            ("--offload_activations", "--activation_checkpointing", "full", "--no_compile"),
            "recomputed without compilation; use --activation_checkpointing none; got full",
        ),
        (("--offload_activations", "--backend", "cudagraphs"), "use --backend inductor; got cudagraphs"),
        (("--offload_activations", "--cuda_graph"), "which is not captured; remove --cuda_graph"),
        (("--parallel", "ddp", "--compiled_autograd", "--cuda_graph"), "not captured; remove --cuda_graph"),
        (("--offload_activations", "--parallel", "tp=2"), "split by tp; got --parallel tp=2,fsdp"),
        (
            ("--offload_activations", "--float8", "tensorwise", "--float8_emulate"),
            "gathered in float8; use --float8 rowwise; got tensorwise",
        ),
        (("--async_tp",), "--async_tp requires --parallel tp=N; got --parallel fsdp"),
        (
            ("--async_tp", "--parallel", "auto"),
            "use --parallel tp=N --micro_batch auto --activation_checkpointing auto",
        ),
        (("--async_tp", "--parallel", "tp=2", "--no_compile"), "--async_tp requires compilation; remove --no_compile"),
        (
            ("--symmetric_memory", "--precision", "fp32", "--parallel", "auto"),
            "--symmetric_memory is for --parallel fsdp or hsdp in bf16; got --parallel auto, --precision fp32",
        ),
        (("--async_tp", "--parallel", "tp=2"), "--async_tp requires GPUs"),
        (("--trace_steps", "25:20"), "--trace_steps must be FIRST:END"),
        (("--trace_steps", "1:" + "9" * 5000), "must be FIRST:END, such as 20:25"),
        (("--trace_steps", "1:2", "--trace_ranks", "9" * 5000), "--trace_ranks must be a list of ranks such as 0,3"),
        (("--trace_steps", "1:2", "--trace_every", "9" * 5000), "--trace_every must be a number of steps above 1"),
        (("--steps", "9" * 5000), "--steps: must be an integer; got '999"),
        (("--plan", "1x" + "9" * 5000), "--plan must be NODESxGPUS, such as 1x8; got '1x999"),
        (("--device", f"h100:{'9' * 5000}GiB"), "--device must be KIND or KIND:MEMORY, such as l40s:48GiB"),
        (("--parallel", "fsdp=" + "9" * 5000), "--parallel must be a list of fsdp or fsdp=N; got 'fsdp=999"),
        (("--parallel", f"hsdp=2x{'9' * 5000}"), "--parallel must be a list of hsdp=RxS; got 'hsdp=2x999"),
        (("--trace_steps", "5"), "must be FIRST:END, such as 20:25"),
        (("--trace_steps", "0:5"), "must start at 1 or later"),
        (("--data", ""), "--data must be a path, a glob or my.module:dataset; got ''"),
        (
            ("--steps", "10", "--trace_steps", "11:13"),
            "--trace_steps must start at a step of the run, which has --steps 10; got '11:13'",
        ),
        (("--trace_steps", "1:6", "--trace_every", "5"), "--trace_every must be a number of steps above 5, the steps"),
        (
            ("--trace_steps", "1:2", "--trace_ranks", "a"),
            "--trace_ranks must be a list of ranks such as 0,3, or empty for all; got 'a'",
        ),
        (("--stepz", "3"), "'--stepz' is not a flag of this command; did you mean --steps"),
        (("--vocab_size", "100"), "--vocab_size must be at least 256 (tokens are bytes); got 100"),
        (("--model", "gpt:10n"), "--model must be a recipe; got 'gpt:10n'; did you mean gpt:10m"),
        (("--precision", "fp8"), "--precision: invalid choice: 'fp8'"),
    ],
)
def test_an_invalid_flag_is_named_with_valid_values(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as refused:
        plan(*flags)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "flags",
    [
        ("--compile_cache", "none", "--no_compile"),
        ("--checkpoint_every", "0", "--keep", "0"),
        ("--trace_ranks", ""),
        ("--trace_steps", "", "--trace_ranks", "0"),
    ],
)
def test_flags_that_switch_off_what_is_off_are_accepted(flags: tuple[str, ...]) -> None:
    assert plan(*flags).config.steps == 100


@pytest.mark.parametrize(
    ("trace_steps", "note"),
    [
        ("20:25", "the run ends in the trace: 1 of 5 steps are traced, up to step 20"),
        ("16:21", ""),
        ("", ""),
    ],
)
def test_a_trace_that_the_run_cuts_short_is_named(trace_steps: str, note: str) -> None:
    assert plan("--steps", "20", "--trace_steps", trace_steps).untraced == note


@pytest.mark.parametrize(
    ("mesh", "ranks", "line"),
    [
        ("fsdp", 1, "--reshard and --symmetric_memory without effect: 1 rank gathers no weights"),
        ("pp=2", 2, "--reshard and --symmetric_memory without effect: pp=2 gathers no weights"),
        ("pp=2", 4, ""),
    ],
)
def test_flags_without_effect_on_the_mesh_are_named(mesh: str, ranks: int, line: str) -> None:
    machine = dataclasses.replace(GPU, world_size=ranks)
    given = plan("--parallel", mesh, "--reshard", "never", "--symmetric_memory", machine=machine)
    assert given.without_effect == line
    assert plan("--parallel", mesh, machine=machine).without_effect == ""


def test_on_one_rank_a_refusal_names_the_mesh_too() -> None:
    with pytest.raises(InputError, match=r"which gather weights; got --parallel ddp$"):
        plan("--parallel", "ddp", "--reshard", "never", machine=GPU)


def test_every_recipe_has_a_valid_shape() -> None:
    for name in RECIPES:
        model = model_config(name)
        assert model.name == name
        assert model.dim % model.heads == 0
        assert model.heads % model.kv_heads == 0
        assert model.head_dim % 2 == 0


def test_flags_are_checked_without_torch_and_with_exit_code_2() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import muster_components.trainer.__main__ as m; "
        "sys.exit(m.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "--model", "gpt:99", "--data", "x"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("trainer: --model must be a recipe; got 'gpt:99'")


def test_torchs_symmetric_memory_does_not_use_nvlink_multicast_unless_the_user_sets_it() -> None:
    for given, expected in (({}, "1"), ({"TORCH_SYMM_MEM_DISABLE_MULTICAST": "0"}, "0")):
        environ = dict(given)
        prepare_environment(environ)
        assert environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == expected


def test_help_is_printed_without_a_traceback() -> None:
    command = [sys.executable, "-m", "muster_components.trainer", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--trace_steps" in ended.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "hf:"), "must be followed by a model type"),
        (
            ("--model", "gpt:1m", "--model_args", "a=1"),
            "--model_args: 'a' is not a field of gpt:1m; fields: layers, dim,",
        ),
        (("--model", "gpt:1m", "--model_args", "layers=two"), "--model_args: layers must be of type int; got 'two'"),
        (("--model", "gpt:1m", "--model_args", "layers=0"), "gpt:1m: layers must be above 0; got 0"),
        (("--model", "gpt:1m", "--model_args", "heads=3"), "gpt:1m: dim must be a multiple of heads (3); got 128"),
        (("--model", "llama:8b", "--model_args", "kv_heads=5"), "heads must be a multiple of kv_heads (5); got 32"),
        (("--model", "gpt:1m", "--model_args", "dim=12"), "dim / heads must be even for rotary positions; got 3"),
        (("--model", "gpt:1m", "--model_args", "dropout=1"), "dropout must be at least 0 and below 1; got 1.0"),
        (("--model", "gpt:1m", "--model_args", "style=new"), "style must be modern or gpt2; got 'new'"),
        (("--model", "hf:llama", "--model_args", "a"), "--model_args must be KEY=VALUE,...; got 'a'"),
        (("--model", "hf:llama", "--model_args", "a=1,a=2"), "--model_args has 'a' twice"),
        (("--model", "my.module:build", "--vocab_size", "300"), "--vocab_size is for recipes and hf: models"),
        (("--model", "my.module:f", "--save_pretrained", "x"), "--save_pretrained is for recipes and hf: models; got"),
        (
            ("--model", "gpt:1m", "--init_from", ""),
            "--init_from must be a run folder, a checkpoint or a folder of safetensors; got ''",
        ),
        (("--model", "hf:llama", "--parallel", "tp=2"), "--parallel tp=N is for recipes"),
        (("--model", "gpt:2m"), "--model must be a recipe"),
        (("--model", "модель"), "--model must be a recipe; got 'модель'. Recipes: gpt:1m, "),
        (("--model", "gpt:1m", "--seed", "4294967296"), "--seed must be from 0 to 4294967295; got 4294967296"),
    ],
)
def test_flags_that_do_not_fit_the_model_are_rejected(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse_train_config((*flags, "--data", "text"), {})


def test_arguments_of_a_recipe_replace_its_fields() -> None:
    flags = ("--model", "llama:8b", "--data", "x", "--vocab_size", "128256", "--model_args", "layers=8,dropout=0.1")
    shape = dataclasses.replace(llama_8b(), layers=8, dropout=0.1, vocab_size=128256)
    assert parse_train_config(flags, {}).model == shape


def test_arguments_of_a_model_may_have_lists() -> None:
    config = parse_train_config(
        ("--model", "hf:resnet", "--data", "x", "--model_args", "depths=[1,2],a=(3,4),b=x", "--vocab_size", "300"), {}
    )
    assert config.model == HuggingFaceSource(
        source="resnet", args=(("depths", "[1,2]"), ("a", "(3,4)"), ("b", "x"), ("vocab_size", "300"))
    )
    factory = parse_train_config(("--model", "my.module:build", "--data", "x", "--model_args", "width=3"), {})
    assert factory.model == FactorySource(name="my.module:build", args=(("width", "3"),))


@pytest.mark.parametrize(
    ("flags", "backend"),
    [((), None), (("--compile",), "inductor"), (("--backend", "eager"), "eager"), (("--no_compile",), None)],
    ids=str,
)
def test_a_model_of_the_user_is_compiled_on_request_only(flags: tuple[str, ...], backend: str | None) -> None:
    """As the log, the heartbeats and the planner then say."""
    config = parse_train_config(["--model", "my.module:factory", "--data", "my.module:data", *flags], {})
    assert resolve_plan(config, LAPTOP).compile_backend == backend


def test_a_misspelled_flag_is_named_before_the_one_that_is_missing_for_it() -> None:
    with pytest.raises(InputError, match="'--modle' is not a flag of this command; did you mean --model"):
        parse_train_config(["--modle", "gpt:10m", "--data", "x"], {})
