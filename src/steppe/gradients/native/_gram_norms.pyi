import numpy as np
from numpy.typing import NDArray

SHORTEST: int

def gram_norms(
    x: NDArray[np.float32],
    g: NDArray[np.float32],
    norms: NDArray[np.float64],
    sums: NDArray[np.float32] | None,
    rounding_x: float,
    rounding_g: float,
    lost: float,
    threads: int,
    /,
) -> None: ...
def gram_matrices(x: NDArray[np.float32], out: NDArray[np.float32], threads: int, /) -> None: ...
def matrix_norms(
    gram_x: NDArray[np.float32],
    gram_g: NDArray[np.float32],
    norms: NDArray[np.float64],
    rounding_x: float,
    rounding_g: float,
    lost: float,
    threads: int,
    /,
) -> None: ...
def roundings(length: int, /) -> float: ...
