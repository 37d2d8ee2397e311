"""Opacus' data module for Lightning has no counterpart."""

from steppe.compat.absent import refusing

__getattr__ = refusing(
    __name__,
    {
        "DPLightningDataModule": "is not offered, because a loop that Lightning runs can not be "
        "followed from batch to step; write the loop with make_private, or use steppe.Trainer"
    },
)
