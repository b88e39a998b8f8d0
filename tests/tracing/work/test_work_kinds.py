"""Kernels are typed by the collective recorded for them, else by the names of communication libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tracing.kineto import kernel, trace_text

from muster.tracing.reader import read_trace
from muster.tracing.work.hta_breakdown import KernelType
from muster.tracing.work.work_kinds import device_work_types, kernel_type


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
        "void deep_ep::internode::dispatch<false, 8, true>(int4*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)",
        "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16>()",
        "nvshmemi_transfer_rma_nbi",
    ],
)
def test_kernels_of_communication_libraries_are_communication(name: str) -> None:
    assert kernel_type(name) is KernelType.COMMUNICATION


@pytest.mark.parametrize("name", ["hipblasLt_gemm_kernel", "hip_fused_adam", "triton_poi_fused_all_reduce_add_0"])
def test_other_kernels_are_compute(name: str) -> None:
    assert kernel_type(name) is KernelType.COMPUTE


def test_a_kernel_with_a_recorded_collective_is_communication_whatever_its_name(tmp_path: Path) -> None:
    document = json.loads(trace_text([kernel("my_exchange_kernel", 0, 5), kernel("my_gemm", 10, 5)]))
    document["traceEvents"][0]["args"]["Collective name"] = "_allgather_base"
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    trace = read_trace(path)
    types = device_work_types(trace, trace.device_work)
    assert types.tolist() == [KernelType.COMMUNICATION, KernelType.COMPUTE]
