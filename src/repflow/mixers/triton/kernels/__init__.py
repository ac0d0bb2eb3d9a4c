"""Triton kernels. Imported only where Triton is installed."""
