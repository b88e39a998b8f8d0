"""Triton kernels, each faster than what Inductor generates; with references in PyTorch."""
