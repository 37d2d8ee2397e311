"""Rules of decompositions and solvers."""

from __future__ import annotations

from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import join, joined_over
from steppe.isolation.rules.arguments import aligned, outputs_of, owned_tensors


def of_matrices(call: Call) -> list[Tensor]:
    """Those of the whole matrix; the matrices of a batch are independent."""
    tensors = owned_tensors(call)
    batch = max(2, *(tensor.ndim for tensor in tensors)) - 2
    parts = []
    for tensor in tensors:
        kept = max(0, tensor.ndim - 2)
        over = joined_over(call.owners(tensor), range(kept, tensor.ndim))
        parts.append(aligned(over.reshape(tuple(over.shape[:kept])), batch))
    found = join(parts)
    return [
        found.reshape(tuple(found.shape) + (1,) * (out.ndim - batch)) for out in outputs_of(call)
    ]


RULES = (
    (
        of_matrices,
        packets(
            "_linalg_svd linalg_qr linalg_inv_ex linalg_lu_factor_ex _linalg_solve_ex "
            "linalg_cholesky_ex _linalg_det _linalg_slogdet _linalg_eigh linalg_solve_triangular "
            "triangular_solve linalg_lu cholesky_solve linalg_lu_solve linalg_matrix_exp "
            "linalg_pinv linalg_eig linalg_householder_product cholesky cholesky_inverse"
        ),
    ),
)
