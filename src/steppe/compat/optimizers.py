"""Optimizers of Opacus: torch's own are used as they are."""

from steppe.compat.absent import NOT_WRAPPED, ONE_PROCESS, refusing

__getattr__ = refusing(
    __name__,
    {
        **dict.fromkeys(
            (
                "AdaClipDPOptimizer",
                "DPOptimizer",
                "DPOptimizerFastGradientClipping",
                "DPPerLayerOptimizer",
            ),
            NOT_WRAPPED,
        ),
        **dict.fromkeys(
            (
                "DistributedDPOptimizer",
                "DistributedDPOptimizerFastGradientClipping",
                "FSDPOptimizerFastGradientClipping",
                "SimpleDistributedPerLayerOptimizer",
            ),
            ONE_PROCESS,
        ),
    },
)
