"""What an event is: the kind of work of a name, a kernel or an annotation.

Kernels are communication if the profiler recorded the collective that they belong to (`Collective name`), or if they
are named as a communication library names them. A name alone can mislead: `hipblasLt_gemm_kernel` is a matrix product.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from muster.tracing.read.events import EventKind, Events, Mask, Trace
from muster.tracing.work.hta_breakdown import KernelType


class TimeCategory(IntEnum):
    """Kinds of work, by precedence: of several that run at once, the first one counts. OTHER is the remaining time."""

    COMPUTE = 0
    OPTIMIZER = 1
    COMMUNICATION = 2
    MEMORY = 3
    DATA = 4
    OTHER = 5


COMMUNICATION_NAME = re.compile(
    r"(c10d|_c10d_functional|c10d_functional|gloo|nccl|mpi|ucc|hccl|xccl):|record_param_comms|nccl", re.IGNORECASE
)
# On the CPU these last from the call to the wait for its result: they overlap other events of their thread.
POINT_TO_POINT_NAME = re.compile(r"(gloo|mpi|ucc):(send|recv)")
# torch's own annotations, and names that training loops (also Muster's trainer) use with record_function.
AUTOGRAD_NAME = re.compile(r"autograd::engine::evaluate_function")
OPTIMIZER_NAME = re.compile(r"Optimizer\.(step|zero_grad)#|(optimizer|clip)$")
# Lightning's are `[pl][profile][_TrainingEpochLoop].train_dataloader_next`, others' `load_batch` or `fetch`.
DATA_NAME = re.compile(
    r"enumerate\(DataLoader\)#|data$"
    r"|(?i:.*(loader|data_?loading|load_?data|(load|get|next|fetch|read|prepare)_?batch|fetch_?data|batch_?generat))"
    r"|(?i:fetch(ing)?$)"
    r"|\[pl\].*_next$"
)
CHECKPOINT_NAME = re.compile(r"check_?point|ckpt|\bsave|_save\b|state_dict", re.IGNORECASE)
# Around code that launches work: what its operators do is not the annotation's.
_PHASE_NAME = re.compile(
    r"[Ff]orward|[Bb]ackward|PP:|optimizer|clip|report|DistributedDataParallel|FullySharded|FSDP|Optimizer\.|##|Torch-"
    r"|autograd|\[pl\]|train|iter|step$"
)
# FSDP2's annotations around the call of a collective: `FSDP::all_gather (layers.3)`; the root module has no name.
FSDP_COLLECTIVE = re.compile(r"FSDP::(?:all_gather|post_backward_reduce)(?: \((?P<block>.*)\))?$")
FSDP_ROOT = "the root module"
NO_ANNOTATION = ""
STEP_ANNOTATION = re.compile(r"ProfilerStep\s*#")
IGNORED_ANNOTATION = re.compile(r"(gloo|nccl|mpi|ucc|c10d):|record_param_comms|.*_data: ")
# Calls in which the host waits for the device.
SYNCHRONISATION = re.compile(r"(cuda|hip)\w*Synchronize|(cuda|hip)Memcpy$")
# Operators that, like annotations, only enclose others: time directly in them is Python.
FRAME_NAME = re.compile(
    r"PythonSubclass$|autograd::engine::evaluate_function|.*BackwardFunctionBackward$|Torch-Compiled Region"
    r"|CompiledFunction(Backward)?$"
)
# Inductor's annotation around the kernels of a compiled graph, which have no events of their own on the CPU.
COMPILED_GRAPH = re.compile(r"## Call CompiledFxGraph (\w+)")


# Kernels of NCCL and RCCL, HCCL, NVSHMEM, DeepEP, and of torch's symmetric memory, vLLM and TensorRT-LLM.
COMMUNICATION_KERNEL = re.compile(
    r"\b(?:nccl|rccl|hccl)|ncclDevKernel|ncclKernel|\bdeep_ep::|nvshmem"
    r"|cross_device_reduce|multimem_(?:one_shot_)?(?:all_reduce|reduce|all_gather)|\b(?:one|two)_shot_all_reduce"
    r"|\b(?:one|two)ShotAllReduce|\blamportAllReduce|\ballreduce_fusion_kernel",
    re.IGNORECASE,
)
MEMORY_KERNEL = re.compile(r"^(hip)?Mem(cpy|set)|^dma")


@lru_cache(maxsize=4096)
def kernel_type(name: str) -> KernelType:
    """The type of a kernel by its name; what is neither communication nor a copy is compute."""
    if COMMUNICATION_KERNEL.search(name):
        return KernelType.COMMUNICATION
    return KernelType.MEMORY if MEMORY_KERNEL.match(name) else KernelType.COMPUTE


def device_work_types(trace: Trace, work: Events) -> NDArray[np.int8]:
    """The type of each event of device work, by the collective recorded for it, else by its name.

    Copies are memory work whatever a vendor calls them.
    """
    if not len(work):
        return np.empty(0, dtype=np.int8)
    by_name = np.array([kernel_type(name) for name in trace.names], dtype=np.int8)
    types = np.where(work.collective >= 0, np.int8(KernelType.COMMUNICATION), by_name[work.name])
    return np.where(work.kind == EventKind.KERNEL, types, np.int8(KernelType.MEMORY)).astype(np.int8)


def nested_events(trace: Trace) -> Events:
    """Operators and annotations of the CPU that nest within a thread: all but sends and receives."""
    return trace.events[is_nested(trace)]


def is_nested(trace: Trace) -> Mask:
    """Which events `nested_events` are: a copy of all columns, of the largest part of most traces, is large."""
    events = trace.events
    return (
        np.isin(events.kind, (EventKind.CPU_OP, EventKind.ANNOTATION))
        & ~matching_names(trace, POINT_TO_POINT_NAME)[events.name]
    )


def is_phase(name: str) -> bool:
    """Whether an annotation is around a phase of training: not around loading data or saving a checkpoint."""
    specific = DATA_NAME.match(name) or CHECKPOINT_NAME.search(name)
    return _PHASE_NAME.match(name) is not None and not specific


def matching_names(trace: Trace, pattern: re.Pattern[str]) -> Mask:
    """A mask over the trace's names."""
    return np.array([pattern.match(name) is not None for name in trace.names], dtype=bool)
