from typing import Any

import numpy as np
from numpy.typing import NDArray

def box_muller(
    words: NDArray[np.int64], turns: NDArray[np.int32], out: NDArray[Any], std: float, /
) -> None: ...
