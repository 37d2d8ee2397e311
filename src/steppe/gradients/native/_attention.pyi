import numpy as np
from numpy.typing import NDArray

LANES: int
LONGEST: int
WIDEST: int

def attend(
    packed: NDArray[np.float32],
    shares: NDArray[np.float32],
    mixed: NDArray[np.float32],
    records: int,
    positions: int,
    heads: int,
    width: int,
    scale: float,
    threads: int,
    /,
) -> None: ...
def attend_backward(
    packed: NDArray[np.float32],
    shares: NDArray[np.float32],
    grad: NDArray[np.float32],
    out: NDArray[np.float32],
    records: int,
    positions: int,
    heads: int,
    width: int,
    scale: float,
    threads: int,
    /,
) -> None: ...
