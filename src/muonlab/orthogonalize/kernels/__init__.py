"""Triton kernels for GPUs, as operators of torch; nothing of this package is imported on a CPU or without Triton."""
