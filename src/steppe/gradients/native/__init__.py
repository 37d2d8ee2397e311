"""Compiled kernels. Each is optional: torch does the same where there is no C compiler."""
