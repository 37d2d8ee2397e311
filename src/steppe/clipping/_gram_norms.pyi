import numpy as np
from numpy.typing import NDArray

SHORTEST: int

def gram_norms(
    x: NDArray[np.float32],
    g: NDArray[np.float32],
    norms: NDArray[np.float64],
    sums: NDArray[np.float32] | None,
    rounding: float,
    lost: float,
    threads: int,
    /,
) -> None: ...
