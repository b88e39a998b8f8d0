"""Compute of a device is divided by the class of its kernels."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Muster, muster
from tests.tracing.kineto import DATA

from muster.tracing.account.kernel_classes import KERNEL_CLASSES, kernel_class

__all__ = ["muster"]  # a fixture


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4>(Params)", "matrix products"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", "matrix products"),
        ("triton_tem_fused_mm_3", "matrix products"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64> >(Flash_fwd_params)", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3_64x128x64_4x1x1", "attention"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)", "attention"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128", "convolutions"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float>(float*)", "convolutions"),
        ("triton_per_fused__fused_rms_norm_6", "kernels of Triton"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", "normalisation"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<Adam>(int)", "foreach operators"),
        ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, sum_functor> >(int)", "reductions"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, 8, true>(float*)", "reductions"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float> >(int)", "elementwise"),
        ("void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda>(int)", "elementwise"),
        ("my_kernel", "other kernels"),
    ],
)
def test_the_class_of_a_kernel_follows_from_its_name(name: str, expected: str) -> None:
    assert KERNEL_CLASSES[kernel_class(name)] == expected


@pytest.mark.parametrize(
    "name", ["small/contention", "small/launch_both", "ns_resolution.pt.trace.json.gz", "negative_queue.json.gz"]
)
def test_the_classes_of_compute_sum_to_it(name: str, muster: Muster) -> None:
    account = json.loads(muster("trace", "analyze", str(DATA / name), "--json").out)["account"]
    for row in (*account["ranks"], *account["longer_steps"]):
        assert sum(row["places_ms"]["compute"].values()) == pytest.approx(row["parts_ms"]["compute"], abs=0.01)


def test_on_the_cpu_compute_has_no_classes(muster: Muster) -> None:
    account = json.loads(muster("trace", "analyze", str(DATA / "ddp_4_ranks"), "--json").out)["account"]
    assert all("compute" not in row["places_ms"] for row in account["ranks"])
