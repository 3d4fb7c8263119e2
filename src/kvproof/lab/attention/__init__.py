"""Attention over paged caches: a dense path for prefill, kernels that read blocks in place."""
