"""FSDP has no counterpart."""

from steppe.compat.absent import ONE_PROCESS, refusing

__getattr__ = refusing(__name__, {"FSDP2Wrapper": ONE_PROCESS})
