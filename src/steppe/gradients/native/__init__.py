"""Compiled kernels. Each is optional: without a C compiler, torch computes the same."""
