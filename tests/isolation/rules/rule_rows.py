"""Calls of every operation that has a rule, with numbers for their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rule_truth import Given, fixed, imaginary, numbers, positive, truths, whole

Make = Callable[[], tuple[Any, tuple[Any, ...]]]
ROWS: dict[str, list[Make]] = {}


def op(name: str) -> Any:
    """An operator of torch, with its overload."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def row(name: str, *makes: Callable[[], tuple[Any, ...]]) -> None:
    """Calls of one operator."""

    def whole_call(make: Callable[[], tuple[Any, ...]]) -> Make:
        def call() -> tuple[Any, tuple[Any, ...]]:
            arguments = make()
            options = arguments[-1] if arguments and isinstance(arguments[-1], dict) else {}
            positional = arguments[:-1] if options else arguments
            return lambda *given: op(name)(*given, **options), positional

        return call

    ROWS.setdefault(name.partition(".")[0], []).extend(map(whole_call, makes))


def rows(names: str, *makes: Callable[[], tuple[Any, ...]]) -> None:
    """Calls of several operators."""
    for name in names.split():
        row(name, *makes)


# Element by element ---------------------------------------------------------------------------

ONE = (lambda: (numbers(3, 4),), lambda: (numbers(2, 1, 3),), lambda: (numbers(4),))
TWO = (
    lambda: (numbers(3, 4), numbers(3, 4)),
    lambda: (numbers(3, 1), numbers(4)),
    lambda: (numbers(2, 1, 3), numbers(4, 1)),
)
rows(
    "_to_copy clone log_sigmoid_forward special_erf conj resolve_conj resolve_neg _neg_view "
    "celu selu detach alias lift_fresh lift_fresh_copy positive isreal angle _conj_physical "
    "conj_physical hardswish hardsigmoid contiguous special_i1 special_i0e special_i1e "
    "special_erfcx detach_ normal_functional log_normal",
    *ONE,
)
rows(
    "bernoulli special_entr special_ndtri special_log_ndtr logit",
    lambda: (positive(3, 4),),
    lambda: (positive(4),),
)
row("_to_copy", lambda: (numbers(3, 4), {"dtype": torch.float64}))
rows("conj _conj", lambda: (imaginary(3, 4),))
row("angle", lambda: (imaginary(3, 4),))
rows(
    "mish_backward hardswish_backward hardsigmoid_backward silu_backward gelu_backward isclose "
    "floor_divide rsub.Tensor special_xlogy complex polar _standard_gamma_grad",
    lambda: (numbers(3, 4), numbers(3, 4)),
    lambda: (numbers(3, 1), numbers(3, 1)),
)
ROWS["_standard_gamma_grad"] = []
row("_standard_gamma_grad", lambda: (positive(3, 4), positive(3, 4)))
row("_dirichlet_grad", lambda: (positive(3, 4), positive(3, 4), positive(3, 4)))
rows("rsub.Tensor floor_divide isclose special_xlogy", *TWO)
rows("tril triu", lambda: (numbers(3, 4), 1), lambda: (numbers(2, 3, 3), -1))
row("softplus_backward", lambda: (numbers(3, 4), numbers(3, 4), 1.0, 20.0))
row("hardtanh_backward", lambda: (numbers(3, 4), numbers(3, 4), -1.0, 1.0))
row("log_sigmoid_backward", lambda: (numbers(3, 4), numbers(3, 4), positive(3, 4)))
rows("prelu _prelu_kernel", lambda: (numbers(3, 4), numbers(1)))
row("_prelu_kernel", lambda: (numbers(3, 4), numbers(1, 4)))
row("prelu", lambda: (numbers(3, 4, 2), numbers(4)))
row("_prelu_kernel_backward", lambda: (numbers(3, 4), numbers(3, 4), numbers(1, 4)))
row("rrelu_with_noise", lambda: (numbers(3, 4), numbers(3, 4), 0.1, 0.3, False))
row(
    "rrelu_with_noise_backward",
    lambda: (numbers(3, 4), numbers(3, 4), numbers(3, 4), 0.1, 0.3, True, False),
)
row("elu_backward", lambda: (numbers(3, 4), 1.0, 1.0, 1.0, False, numbers(3, 4)))
row("leaky_relu_backward", lambda: (numbers(3, 4), numbers(3, 4), 0.1, False))
rows(
    "hardshrink_backward softshrink_backward threshold_backward",
    lambda: (numbers(3, 4), numbers(3, 4), 0.5),
)
row("native_dropout", lambda: (numbers(3, 4), 0.5, True))
row("dropout", lambda: (numbers(3, 4), 0.5, True))
row("native_dropout_backward", lambda: (numbers(3, 4), truths(3, 4), 2.0))
row("masked_fill.Scalar", lambda: (numbers(3, 4), truths(3, 1), 2.0))
row("masked_fill.Tensor", lambda: (numbers(3, 4), truths(4), numbers()))
row("lerp.Scalar", lambda: (numbers(3, 4), numbers(3, 4), 0.3))
row("lerp.Tensor", lambda: (numbers(3, 4), numbers(3, 4), numbers(3, 1)))
rows("addcmul addcdiv", lambda: (numbers(3, 4), positive(4), positive(3, 1)))
row(
    "binary_cross_entropy_with_logits",
    lambda: (numbers(3, 4), positive(3, 4), numbers(4), positive(4), 0),
)
row("where.self", lambda: (truths(3, 1), numbers(3, 4), numbers(4)))
row("normal.float_Tensor", lambda: (0.0, positive(3, 4)))
row("normal.Tensor_Tensor", lambda: (numbers(3, 4), positive(3, 4)))
rows(
    "bitwise_left_shift.Tensor bitwise_right_shift.Tensor",
    lambda: (whole(0, 9, 3, 4), whole(0, 3, 3, 4)),
)
rows("fmod.Tensor", *TWO)
rows("add.Tensor mul.Tensor sub.Tensor maximum atan2 lt.Tensor", *TWO)
rows("tanh exp sigmoid gelu relu abs sign nan_to_num", *ONE)
rows("add_.Tensor mul_.Tensor", lambda: (numbers(3, 4), numbers(4)))
row("copy_", lambda: (numbers(3, 4), numbers(4)), lambda: (numbers(3, 4), numbers(3, 1)))
rows("fill.Scalar fill_.Scalar", lambda: (numbers(3, 4), 2.0))
rows("fill.Tensor fill_.Tensor", lambda: (numbers(3, 4), numbers()))
rows("zero zero_", lambda: (numbers(3, 4),))
rows("normal_ uniform_ exponential_ random_ log_normal_ cauchy_", lambda: (numbers(3, 4),))
row("bernoulli_.Tensor", lambda: (numbers(3, 4), positive(3, 4)))
row("geometric_", lambda: (numbers(3, 4), 0.5))

# Movement -------------------------------------------------------------------------------------

rows(
    "view _unsafe_view reshape",
    lambda: (numbers(3, 4), [12]),
    lambda: (numbers(6, 2), [3, 2, 2]),
    lambda: (numbers(3, 4, 2), [4, 3, 2]),
    lambda: (numbers(2, 3, 4), [6, 1, 4]),
    lambda: (numbers(1, 3), [3]),
    lambda: (numbers(3), [1, 3, 1]),
    lambda: (numbers(3, 4), [2, -1]),
    lambda: (numbers(3, 1, 4, 1), [12, 1]),
    lambda: (numbers(1), []),
)
row("view.dtype", lambda: (numbers(3, 4), torch.int32))
rows("unsqueeze unsqueeze_", lambda: (numbers(3, 4), 0), lambda: (numbers(3, 4), -1))
rows("unsqueeze unsqueeze_", lambda: (numbers(3, 4), 1))
row(
    "as_strided_",
    lambda: (numbers(3, 4, 1, 1), (3, 4, 1, 1), (4, 1, 4, 4)),
    lambda: (numbers(3, 3), (3, 3), (1, 3)),
)
rows("squeeze squeeze_", lambda: (numbers(3, 1, 4),), lambda: (numbers(1, 3, 1, 3),))
rows("squeeze.dim squeeze_.dim", lambda: (numbers(3, 1, 4), 1), lambda: (numbers(1, 3), -2))
rows("squeeze.dim squeeze_.dim", lambda: (numbers(3, 4), 0))
rows(
    "squeeze.dims squeeze_.dims",
    lambda: (numbers(1, 3, 1), [0, 2]),
    lambda: (numbers(4, 1, 3, 1), [1, 2]),
    lambda: (numbers(3, 1, 3), [-1, -2]),
)
row("_reshape_alias", lambda: (numbers(3, 4), [12], [1]))
row("expand", lambda: (numbers(3, 1), [3, 4]), lambda: (numbers(1, 3), [2, -1, 3]))
row("permute", lambda: (numbers(2, 3, 4), [2, 0, 1]), lambda: (numbers(2, 3), [-1, 0]))
rows(
    "transpose.int transpose_ swapaxes_ swapdims_",
    lambda: (numbers(2, 3, 4), 0, -1),
    lambda: (numbers(3, 3), 0, 1),
)
rows("t t_", lambda: (numbers(3, 4),), lambda: (numbers(3, 3),), lambda: (numbers(3),))
row("movedim.int", lambda: (numbers(2, 3, 4), 0, 2))
row("slice.Tensor", lambda: (numbers(6, 2), 0, 1, 6, 2), lambda: (numbers(3, 4), -1, 1, -1))
row("slice.Tensor", lambda: (numbers(4),))
row("select.int", lambda: (numbers(3, 4), 0, -1), lambda: (numbers(3, 4), -1, 2))
rows("split.Tensor unsafe_split.Tensor", lambda: (numbers(5, 2), 2), lambda: (numbers(2, 5), 2, -1))
rows(
    "split_with_sizes unsafe_split_with_sizes split.sizes",
    lambda: (numbers(5, 2), [2, 3]),
    lambda: (numbers(2, 5), [1, 4], -1),
)
rows("chunk unsafe_chunk", lambda: (numbers(6, 2), 3), lambda: (numbers(2, 4), 2, -1))
row("unbind.int", lambda: (numbers(3, 4),), lambda: (numbers(3, 4), -1))
row("narrow", lambda: (numbers(3, 4), 1, 1, 2))
rows("diagonal diagonal_copy", lambda: (numbers(3, 4),), lambda: (numbers(2, 3, 3), -1, -2, -1))
row("unfold", lambda: (numbers(5, 2), 0, 3, 1), lambda: (numbers(2, 6), -1, 2, 2))
row("tensor_split.sections", lambda: (numbers(5, 2), 2))
row("flip", lambda: (numbers(3, 4), [0]), lambda: (numbers(3, 4), [-1, 0]))
row("roll", lambda: (numbers(3, 4), [1]), lambda: (numbers(3, 4), [1, 2], [0, -1]))
rows("repeat tile", lambda: (numbers(3, 2), [2, 1]), lambda: (numbers(3), [2, 2]))
row("rot90", lambda: (numbers(3, 4), 1, [0, 1]))
row("pixel_shuffle", lambda: (numbers(3, 4, 2, 2), 2))
row("pixel_unshuffle", lambda: (numbers(3, 1, 4, 4), 2))
rows("channel_shuffle native_channel_shuffle", lambda: (numbers(3, 4, 2, 2), 2))
row("repeat_interleave.self_int", lambda: (numbers(3, 2), 2, 0))
row("diag", lambda: (numbers(3),), lambda: (numbers(3, 4), 1))
rows(
    "reflection_pad1d replication_pad1d",
    lambda: (numbers(3, 2, 4), [1, 2]),
    lambda: (numbers(2, 4), [1, 1]),
)
rows("reflection_pad2d replication_pad2d", lambda: (numbers(3, 2, 3, 3), [1, 1, 2, 0]))
rows("reflection_pad3d replication_pad3d", lambda: (numbers(2, 1, 3, 3, 3), [1, 1, 1, 0, 1, 1]))
row("slice_backward", lambda: (numbers(2, 3), [4, 3], 0, 1, 3, 1))
row("select_backward", lambda: (numbers(3), [4, 3], 0, -1))
row("diagonal_backward", lambda: (numbers(3), [3, 3], 0, 0, 1))
row("constant_pad_nd", lambda: (numbers(3, 2), [1, 1, 0, 2], 1.5), lambda: (numbers(3, 4), [-1, 1]))
row("diag_embed", lambda: (numbers(3, 2),), lambda: (numbers(3, 2), 1, 0, 2))
row("slice_scatter", lambda: (numbers(4, 3), numbers(2, 3), 0, 1, 3))
row("select_scatter", lambda: (numbers(4, 3), numbers(3), 0, -1))
row("diagonal_scatter", lambda: (numbers(3, 3), numbers(3)))
row("cat", lambda: ([numbers(2, 3), numbers(1, 3)],), lambda: ([numbers(2, 3), numbers(2, 1)], -1))
row("cat", lambda: ([numbers(0), numbers(2, 3)],))
row("stack", lambda: ([numbers(2, 3), numbers(2, 3)],), lambda: ([numbers(3), numbers(3)], -1))
row("as_strided", lambda: (numbers(3, 4), [2, 2], [4, 2], 1), lambda: (numbers(6), [4, 3], [1, 1]))
row("view_as_real", lambda: (imaginary(3, 2),))
row("view_as_complex", lambda: (numbers(3, 2),))
row("unfold_backward", lambda: (numbers(3, 2, 3), [5, 2], 0, 3, 1))

# Reductions -----------------------------------------------------------------------------------

AXES = (
    lambda: (numbers(3, 4), [0]),
    lambda: (numbers(3, 4), [-1], True),
    lambda: (numbers(2, 3, 4), [0, -1]),
    lambda: (numbers(4), [0]),
    lambda: (numbers(3, 4), []),
)
AXIS = (
    lambda: (numbers(3, 4), 0),
    lambda: (numbers(3, 4), -1, True),
    lambda: (numbers(4), 0),
)
rows("sum.dim_IntList mean.dim amax amin nansum", *AXES)
row("logsumexp", *AXES[:-1])
rows(
    "sum mean prod any all argmax argmin var std var_mean std_mean norm.Scalar max min median "
    "nanmedian count_nonzero aminmax _aminmax",
    *ONE,
)
rows(
    "prod.dim_int any.dim all.dim argmax argmin max.dim min.dim median.dim nanmedian.dim mode",
    *AXIS,
)
rows("any.dims all.dims", *AXES)
row("count_nonzero.dim_IntList", lambda: (whole(0, 1, 3, 4), [1]))
rows("any.dim all.dim", lambda: (truths(3, 2), 1))
row("mode", lambda: (whole(0, 2, 3, 4),))
row("kthvalue", lambda: (numbers(3, 4), 2), lambda: (numbers(3, 4), 1, 0, True))
rows(
    "var.correction std.correction var_mean.correction std_mean.correction",
    lambda: (numbers(3, 4), [0]),
    lambda: (numbers(3, 4), [-1], {"keepdim": True}),
    lambda: (numbers(3, 4),),
)
row(
    "linalg_vector_norm",
    lambda: (numbers(3, 4),),
    lambda: (numbers(3, 4), 2, [-1]),
    lambda: (numbers(3, 4), 1, [0], True),
)
row("norm.ScalarOpt_dim", lambda: (numbers(3, 4), 2, [1]))
row("aminmax", lambda: (numbers(3, 4), {"dim": 1}))
row("_aminmax.dim", lambda: (numbers(3, 4), 1))
rows("max.other min.other", *TWO)
row("trace", lambda: (numbers(3, 3),))
rows("dot vdot", lambda: (numbers(4), numbers(4)))

# Along an axis --------------------------------------------------------------------------------

rows(
    "_softmax _log_softmax",
    lambda: (numbers(3, 4), 0, False),
    lambda: (numbers(2, 3, 4), -2, False),
)
row("_safe_softmax", lambda: (numbers(3, 4), -1))
rows(
    "_softmax_backward_data _log_softmax_backward_data",
    lambda: (numbers(3, 4), numbers(3, 4), -1, torch.float32),
    lambda: (numbers(3, 4), numbers(3, 4), 0, torch.float32),
)
rows(
    "cumsum cumprod logcumsumexp cummax cummin",
    lambda: (numbers(3, 4), 0),
    lambda: (numbers(3, 4), -1),
)
rows("sort argsort", lambda: (numbers(3, 4),), lambda: (numbers(3, 4), 0, True))
row("sort.stable", lambda: (numbers(3, 4), {"stable": True, "dim": 0}))
row("topk", lambda: (numbers(3, 4), 2), lambda: (numbers(3, 4), 2, 0))
row("glu", lambda: (numbers(3, 4),), lambda: (numbers(4, 3), 0))
row(
    "glu_backward",
    lambda: (numbers(3, 2), numbers(3, 4), -1),
    lambda: (numbers(2, 3), numbers(4, 3), 0),
)
row(
    "renorm",
    lambda: (numbers(3, 4), 2.0, 0, 0.5),
    lambda: (numbers(3, 4), 2.0, 1, 0.5),
    lambda: (numbers(3, 2, 4), 2.0, -1, 0.5),
)
row("_masked_softmax", lambda: (numbers(2, 1, 3, 3), truths(2, 1, 3, 3), 3, 2))
row("_masked_softmax_backward", lambda: (numbers(3, 4), numbers(3, 4), truths(3, 4), 1))
row("_fft_r2c", lambda: (numbers(3, 4), [1], 0, True), lambda: (numbers(3, 4), [0], 0, False))
row("_fft_c2r", lambda: (imaginary(3, 3), [1], 2, 4))
row("_fft_c2c", lambda: (imaginary(3, 4), [0], 0, True), lambda: (imaginary(3, 4), [1], 0, False))
row("multinomial", lambda: (positive(3, 4), 2))
row(
    "bucketize.Scalar",
    lambda: (0.5, numbers(3)),
)
row(
    "bucketize.Tensor",
    lambda: (numbers(3, 4), fixed(torch.tensor([-1.0, 0.0, 1.0]))),
    lambda: (numbers(3), numbers(1)),
)
row(
    "searchsorted.Tensor",
    lambda: (fixed(torch.tensor([-1.0, 0.0, 1.0])), numbers(3, 4)),
    lambda: (numbers(3, 1), numbers(3, 4)),
)
row("searchsorted.Scalar", lambda: (numbers(3), 0.5))

# Products -------------------------------------------------------------------------------------

row("mm", lambda: (numbers(3, 4), numbers(4, 2)))
row("bmm", lambda: (numbers(3, 2, 4), numbers(3, 4, 2)))
row(
    "addmm",
    lambda: (numbers(2), numbers(3, 4), numbers(4, 2)),
    lambda: (numbers(3, 2), numbers(3, 4), numbers(4, 2)),
)
row(
    "baddbmm",
    lambda: (numbers(3, 2, 2), numbers(3, 2, 4), numbers(3, 4, 2)),
    lambda: (numbers(2, 1), numbers(3, 2, 4), numbers(3, 4, 2)),
)
row("mv", lambda: (numbers(3, 4), numbers(4)))
row(
    "addmv",
    lambda: (numbers(3), numbers(3, 4), numbers(4)),
    lambda: (numbers(1), numbers(3, 4), numbers(4)),
)


def convolved(groups: int, transposed: bool, one: bool = False) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        weight = (4, 6 // groups) if transposed else (6, 4 // groups)
        size, d = ((3,), 1) if one else ((2, 2), 2)
        return (
            numbers(3, 4, *([4] * d)), numbers(*weight, *size), numbers(6), [1] * d, [0] * d,
            [1] * d, transposed, [0] * d, groups,
        )  # fmt: skip

    return make


FORMS = [(g, t) for g in (1, 2) for t in (False, True)]
row("convolution", *[convolved(g, t) for g, t in FORMS], convolved(2, False, one=True))
row(
    "_convolution",
    *[lambda g=g, t=t: (*convolved(g, t)(), False, False, False, False) for g, t in FORMS],
)
row(
    "mkldnn_convolution",
    lambda: (numbers(3, 4, 4, 4), numbers(6, 2, 2, 2), numbers(6), [0, 0], [1, 1], [1, 1], 2),
)


def convolved_back(groups: int, transposed: bool) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        weight = (4, 6 // groups) if transposed else (6, 4 // groups)
        size = 5 if transposed else 3
        return (
            numbers(3, 6, size, size), numbers(3, 4, 4, 4), numbers(*weight, 2, 2), [6], [1, 1],
            [0, 0], [1, 1], transposed, [0, 0], groups, [True, True, True],
        )  # fmt: skip

    return make


row("convolution_backward", *[convolved_back(g, t) for g, t in FORMS])
row(
    "_trilinear",
    lambda: (numbers(3, 2), numbers(4, 2, 5), numbers(3, 5), [1, 3], [0], [1, 2], [2, 3]),
)
row(
    "_cdist_forward",
    lambda: (numbers(3, 4), numbers(2, 4), 2.0, None),
    lambda: (numbers(3, 2, 4), numbers(3, 5, 4), 1.0, None),
)
row("_euclidean_dist", lambda: (numbers(3, 4), numbers(2, 4)))
row("_cdist_backward", lambda: (numbers(3, 2), numbers(3, 4), numbers(2, 4), 2.0, positive(3, 2)))
row("linear", lambda: (numbers(3, 4), numbers(2, 4), numbers(2)))

# Normalisation --------------------------------------------------------------------------------

row(
    "native_layer_norm",
    lambda: (numbers(3, 2, 4), [4], numbers(4), numbers(4), 1e-5),
    lambda: (numbers(3, 2, 4), [2, 4], None, None, 1e-5),
    lambda: (numbers(4), [4], None, None, 1e-5),
)
row(
    "native_layer_norm_backward",
    lambda: (
        numbers(3, 4),
        numbers(3, 4),
        [4],
        numbers(3, 1),
        positive(3, 1),
        numbers(4),
        numbers(4),
        [True, True, True],
    ),
)
row("_fused_rms_norm", lambda: (numbers(3, 2, 4), [4], numbers(4), 1e-5))
row("rms_norm", lambda: (numbers(3, 4), [4], numbers(4)))
row("native_group_norm", lambda: (numbers(3, 4, 2), numbers(4), numbers(4), 3, 4, 2, 2, 1e-5))
row(
    "native_group_norm_backward",
    lambda: (
        numbers(3, 4, 2),
        numbers(3, 4, 2),
        numbers(3, 2),
        positive(3, 2),
        numbers(4),
        3,
        4,
        2,
        2,
        [True, True, True],
    ),
)
row(
    "native_batch_norm",
    *[
        lambda t=t: (
            numbers(3, 4, 2),
            numbers(4),
            numbers(4),
            numbers(4),
            positive(4),
            t,
            0.1,
            1e-5,
        )
        for t in (True, False)
    ],
    lambda: (numbers(3, 4), None, None, None, None, True, 0.1, 1e-5),
)
row(
    "_native_batch_norm_legit",
    *[
        lambda t=t: (
            numbers(3, 4, 2),
            numbers(4),
            numbers(4),
            numbers(4),
            positive(4),
            t,
            0.1,
            1e-5,
        )
        for t in (True, False)
    ],
)
row("_native_batch_norm_legit.no_stats", lambda: (numbers(3, 4), None, None, True, 0.1, 1e-5))
rows(
    "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update",
    lambda: (numbers(3, 4, 2), numbers(4), numbers(4), numbers(4), positive(4), 0.1, 1e-5),
)
row(
    "native_batch_norm_backward",
    *[
        lambda t=t: (
            numbers(3, 4, 2),
            numbers(3, 4, 2),
            numbers(4),
            numbers(4),
            positive(4),
            numbers(4),
            positive(4),
            t,
            1e-5,
            [True, True, True],
        )
        for t in (True, False)
    ],
)
row(
    "batch_norm_backward",
    *[
        lambda t=t: (
            numbers(3, 4, 2),
            numbers(3, 4, 2),
            numbers(4),
            numbers(4),
            positive(4),
            numbers(4),
            positive(4),
            t,
            1e-5,
            [True, True, True],
            fixed(torch.zeros(0)),
        )
        for t in (True, False)
    ],
)

# Losses ---------------------------------------------------------------------------------------

for kind in (0, 1, 2):
    rows(
        "mse_loss huber_loss smooth_l1_loss soft_margin_loss l1_loss",
        lambda kind=kind: (numbers(3, 4), numbers(3, 4), kind),
    )
    row(
        "binary_cross_entropy",
        lambda kind=kind: (positive(3, 4), positive(3, 4), positive(3, 4), kind),
    )
    for shape in ((3, 4), ()) if kind else ((3, 4),):
        rows(
            "mse_loss_backward soft_margin_loss_backward",
            lambda kind=kind, shape=shape: (numbers(*shape), numbers(3, 4), numbers(3, 4), kind),
        )
        rows(
            "huber_loss_backward smooth_l1_loss_backward",
            lambda kind=kind, shape=shape: (
                numbers(*shape),
                numbers(3, 4),
                numbers(3, 4),
                kind,
                1.0,
            ),
        )
        row(
            "binary_cross_entropy_backward",
            lambda kind=kind, shape=shape: (
                numbers(*shape),
                positive(3, 4),
                positive(3, 4),
                positive(3, 4),
                kind,
            ),
        )
    row(
        "nll_loss_forward",
        lambda kind=kind: (numbers(3, 4), whole(0, 3, 3), positive(4), kind, -100),
        lambda kind=kind: (numbers(4), whole(0, 3), None, kind, -100),
        lambda kind=kind: (numbers(4, 4), whole(0, 3, 4), positive(4), kind, 1),
    )
    row(
        "nll_loss2d_forward",
        lambda kind=kind: (numbers(3, 4, 2, 2), whole(0, 3, 3, 2, 2), positive(4), kind, -100),
    )
    row(
        "multi_margin_loss",
        lambda kind=kind: (numbers(3, 4), whole(0, 3, 3), 1, 1.0, positive(4), kind),
        lambda kind=kind: (numbers(4, 4), whole(0, 3, 4), 1, 1.0, positive(4), kind),
        lambda kind=kind: (numbers(4), whole(0, 3), 1, 1.0, None, kind),
    )
    row(
        "multi_margin_loss_backward",
        lambda kind=kind: (
            numbers(*((4,) if kind == 0 else ())),
            numbers(4, 4),
            whole(0, 3, 4),
            1,
            1.0,
            positive(4),
            kind,
        ),
    )
    row(
        "multilabel_margin_loss_forward",
        lambda kind=kind: (numbers(3, 4), whole(-1, 3, 3, 4), kind),
    )
    row(
        "multilabel_margin_loss_backward",
        lambda kind=kind: (
            numbers(*((3,) if kind == 0 else ())),
            numbers(3, 4),
            whole(-1, 3, 3, 4),
            kind,
            positive(3, 4),
        ),
    )
row("mse_loss", lambda: (numbers(3, 1), numbers(3), 0))
row(
    "nll_loss_backward",
    lambda: (
        numbers(3),
        numbers(3, 4),
        whole(0, 3, 3),
        positive(4),
        0,
        -100,
        fixed(torch.tensor(0.0)),
    ),
    lambda: (numbers(), numbers(3, 4), whole(0, 3, 3), positive(4), 1, -100, positive()),
)
row(
    "nll_loss2d_backward",
    lambda: (
        numbers(3, 2, 2),
        numbers(3, 4, 2, 2),
        whole(0, 3, 3, 2, 2),
        positive(4),
        0,
        -100,
        fixed(torch.tensor(0.0)),
    ),
)

# Windows --------------------------------------------------------------------------------------


def picture(d: int, size: int = 4, **options: Any) -> Any:
    return numbers(3, 2, *([size] * d), **options)


def places(d: int, low: int, high: int, size: int) -> Any:
    return whole(low, high, 3, 2, *([size] * d), free=True)


for d in (1, 2, 3):
    two, n = [2] * d, [4] * d
    none = [None] * d
    shape = [3, 2, *n]
    pad = [1] * (2 * d)
    row(f"avg_pool{d}d", lambda d=d, two=two: (picture(d), two))
    row(f"adaptive_avg_pool{d}d", lambda d=d, two=two: (picture(d), two))
    row(f"adaptive_max_pool{d}d", lambda d=d, two=two: (picture(d), two))
    row(f"max_pool{d}d", lambda d=d, two=two: (picture(d), two))
    row(f"max_pool{d}d_with_indices", lambda d=d, two=two: (picture(d), two))
    rows(
        f"upsample_nearest{d}d _upsample_nearest_exact{d}d",
        lambda d=d: (picture(d), [6] * d, *([None] * d)),
    )
    rows(
        f"upsample_nearest{d}d_backward _upsample_nearest_exact{d}d_backward",
        lambda d=d, shape=shape: (picture(d, 8), [8] * d, shape, *([None] * d)),
    )
    rows(
        f"reflection_pad{d}d_backward replication_pad{d}d_backward",
        lambda d=d, pad=pad: (picture(d, 6), picture(d), pad),
    )
    if d == 1:
        continue
    row(f"_adaptive_avg_pool{d}d", lambda d=d, two=two: (picture(d), two))
    row(f"_adaptive_avg_pool{d}d_backward", lambda d=d: (picture(d, 2), picture(d)))
    row(
        f"adaptive_max_pool{d}d_backward",
        lambda d=d: (picture(d, 2), picture(d), places(d, 0, 7, 2)),
    )
    row(
        f"avg_pool{d}d_backward",
        lambda d=d, two=two: (picture(d, 2), picture(d), two, two, [0] * d, False, True, None),
    )
    row(
        f"max_pool{d}d_with_indices_backward",
        lambda d=d, two=two: (
            picture(d, 2), picture(d), two, two, [0] * d, [1] * d, False, places(d, 0, 7, 2),
        ),
    )  # fmt: skip
    if d == 2:
        row(
            "max_unpool2d",
            lambda: (
                picture(2, 2),
                fixed(torch.tensor([0, 2, 8, 10]).view(2, 2).expand(3, 2, 2, 2)),
                [4, 4],
            ),
        )
    else:
        row(
            "max_unpool3d",
            lambda: (picture(3, 1), places(3, 0, 7, 1), [2, 2, 2], [2, 2, 2], [0, 0, 0]),
        )
    row(f"fractional_max_pool{d}d", lambda d=d, two=two: (picture(d), two, two, positive(3, 2, d)))
    row(
        f"fractional_max_pool{d}d_backward",
        lambda d=d, two=two: (picture(d, 2), picture(d), two, two, places(d, 0, 7, 2)),
    )
row("upsample_linear1d", lambda: (picture(1), [6], False))
row("upsample_linear1d_backward", lambda: (picture(1, 6), [6], [3, 2, 4], False))
rows(
    "upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    lambda: (picture(2), [6, 6], False),
)
rows(
    "upsample_bilinear2d_backward upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward "
    "_upsample_bicubic2d_aa_backward",
    lambda: (picture(2, 6), [6, 6], [3, 2, 4, 4], False),
)
row("upsample_trilinear3d", lambda: (picture(3), [5, 5, 5], False))
row("upsample_trilinear3d_backward", lambda: (picture(3, 5), [5, 5, 5], [3, 2, 4, 4, 4], False))
SQUARE = ([2, 2], [1, 1], [0, 0], [2, 2])
row("im2col", lambda: (picture(2), *SQUARE), lambda: (numbers(2, 4, 4), *SQUARE))
row("col2im", lambda: (numbers(3, 8, 4), [4, 4], *SQUARE), lambda: (numbers(8, 4), [4, 4], *SQUARE))
row("grid_sampler_2d", lambda: (picture(2), numbers(3, 3, 3, 2), 0, 0, False))
row("grid_sampler_3d", lambda: (picture(3), numbers(3, 2, 2, 2, 3), 0, 0, False))
row(
    "grid_sampler_2d_backward",
    lambda: (picture(2, 3), picture(2), numbers(3, 3, 3, 2), 0, 0, False, [True, True]),
)
row(
    "grid_sampler_3d_backward",
    lambda: (picture(3, 2), picture(3), numbers(3, 2, 2, 2, 3), 0, 0, False, [True, True]),
)
row("affine_grid_generator", lambda: (numbers(3, 2, 3), [3, 1, 2, 2], False))

# Attention ------------------------------------------------------------------------------------

row(
    "_scaled_dot_product_flash_attention_for_cpu",
    lambda: (numbers(3, 2, 3, 4), numbers(3, 2, 5, 4), numbers(3, 2, 5, 4)),
    lambda: (numbers(3, 2, 3, 4), numbers(3, 2, 3, 4), numbers(3, 2, 3, 4), 0.0, True),
    lambda: (
        numbers(3, 2, 3, 4), numbers(3, 2, 5, 4), numbers(3, 2, 5, 4),
        {"attn_mask": torch.randn(3, 1, 3, 5)},
    ),
)  # fmt: skip


def attended_back() -> tuple[Any, ...]:
    q = (3, 2, 3, 4)
    return (*(numbers(*q) for _ in range(5)), numbers(3, 2, 3), 0.0, False)


row("_scaled_dot_product_flash_attention_for_cpu_backward", attended_back)

# Indexing -------------------------------------------------------------------------------------

PICKS = (
    lambda: (numbers(4, 3), [whole(-4, 3, 5)]),
    lambda: (numbers(4, 3), [None, whole(0, 2, 2, 2)]),
    lambda: (numbers(4, 3), [whole(0, 3, 2), whole(-3, 2, 2)]),
    lambda: (numbers(4, 3), [whole(0, 3, 2, 1), whole(0, 2, 3)]),
    lambda: (numbers(2, 4, 3), [whole(0, 1, 2), None, whole(0, 2, 2)]),
    lambda: (numbers(2, 4, 3), [None, whole(0, 3, 2), whole(0, 2, 1)]),
    lambda: (numbers(4, 3), [truths(4, free=True)]),
    lambda: (numbers(4, 3), [truths(4, 3, free=True)]),
    lambda: (numbers(4, 3), [None, whole(0, 2, 2, free=True)]),
    lambda: (numbers(4, 3), [whole(0, 3, 4, free=True), whole(0, 2, 4)]),
    lambda: (numbers(4, 3), [whole(0, 3, free=True)]),
)
rows("index.Tensor", *PICKS)
rows("_unsafe_index.Tensor", PICKS[0], PICKS[2], PICKS[4])


def puts(accumulate: bool) -> tuple[Callable[[], tuple[Any, ...]], ...]:
    return (
        lambda: (numbers(4, 3), [whole(-4, 3, 5)], numbers(5, 3), accumulate),
        lambda: (numbers(4, 3), [whole(0, 3, 5)], numbers(3), accumulate),
        lambda: (numbers(4, 3), [None, whole(0, 2, 2)], numbers(4, 2), accumulate),
        lambda: (numbers(4, 3), [whole(0, 3, 2), whole(0, 2, 2)], numbers(), accumulate),
        lambda: (
            numbers(2, 4, 3),
            [whole(0, 1, 2), None, whole(0, 2, 2)],
            numbers(2, 4),
            accumulate,
        ),
        lambda: (numbers(4, 3), [whole(0, 3, 5, free=True)], numbers(5, 3), accumulate),
        lambda: (numbers(4, 3), [truths(4, free=True)], numbers(1, 3), accumulate),
    )


rows("index_put index_put_ _index_put_impl_", *puts(True), *puts(False))
rows("_unsafe_index_put", *puts(True)[:3])
rows(
    "index_put index_put_",
    lambda: (numbers(4, 3), [truths(4, 3)], numbers()),
    lambda: (numbers(4, 3), [truths(4)], numbers()),
)
row(
    "gather",
    lambda: (numbers(3, 4), 1, whole(0, 3, 3, 2)),
    lambda: (numbers(3, 4), 0, whole(0, 2, 2, 3)),
)
row("gather", lambda: (numbers(3, 4), -1, whole(0, 3, 2, 2, free=True)))
row(
    "index_select",
    lambda: (numbers(3, 4), 1, whole(0, 3, 5)),
    lambda: (numbers(3, 4), 0, whole(0, 2, 2, free=True)),
)
rows(
    "scatter_add scatter_add_ scatter.src scatter_.src",
    lambda: (numbers(3, 4), 1, whole(0, 3, 2, 2), numbers(3, 3)),
    lambda: (numbers(3, 4), 0, whole(0, 2, 3, 3), numbers(3, 4)),
    lambda: (numbers(4), 0, whole(0, 3, 3), numbers(3)),
)
rows("scatter.value scatter_.value", lambda: (numbers(3, 4), -1, whole(0, 3, 2, 2), 1.0))
rows(
    "scatter_reduce.two scatter_reduce_.two",
    lambda: (numbers(3, 4), 1, whole(0, 3, 2, 2), numbers(3, 3), "amax"),
    lambda: (numbers(3, 4), 0, whole(0, 2, 2, 3), numbers(3, 4), "mean"),
)
rows(
    "index_add index_add_ index_copy index_copy_",
    lambda: (numbers(3, 4), 0, whole(0, 2, 2), numbers(2, 4)),
    lambda: (numbers(3, 4), -1, whole(0, 3, 2), numbers(3, 2)),
    lambda: (numbers(4), 0, whole(0, 3, 2), numbers(2)),
)
rows(
    "index_fill.int_Scalar index_fill_.int_Scalar", lambda: (numbers(3, 4), 0, whole(0, 2, 2), 1.0)
)
rows(
    "index_fill.int_Tensor index_fill_.int_Tensor",
    lambda: (numbers(3, 4), 1, whole(0, 3, 2), numbers()),
)
row("index_reduce", lambda: (numbers(3, 4), 0, whole(0, 2, 2), numbers(2, 4), "amax"))
row("masked_scatter", lambda: (numbers(3), truths(4, 3), numbers(12)))
rows(
    "masked_scatter masked_scatter_",
    lambda: (numbers(3, 4), truths(3, 4), numbers(12)),
    lambda: (numbers(3, 4), truths(3, 4), numbers(3, 4)),
)
row(
    "embedding", lambda: (numbers(5, 2), whole(0, 4, 3, 2)), lambda: (numbers(5, 2), whole(0, 4, 3))
)
row("embedding_dense_backward", lambda: (numbers(3, 2, 4), whole(0, 4, 3, 2), 5, -1, False))
row("take", lambda: (numbers(3, 4), whole(0, 11, 2, 2)))
OFFSETS = torch.tensor([0, 2, 3])


def ascending() -> Given:
    """Where bags begin."""

    def draw() -> Any:
        return torch.cat([torch.zeros(1, dtype=torch.long), torch.randint(6, (2,)).sort().values])

    return Given(draw(), draw, along=[])


for mode in (0, 1, 2):
    rows(
        "_embedding_bag _embedding_bag_forward_only",
        lambda mode=mode: (numbers(5, 2), whole(0, 4, 6), fixed(OFFSETS), False, mode),
    )
rows(
    "_embedding_bag _embedding_bag_forward_only",
    lambda: (numbers(5, 2), whole(0, 4, 6), fixed(OFFSETS), False, 0, False, numbers(6)),
)
rows(
    "_embedding_bag _embedding_bag_forward_only",
    lambda: (numbers(5, 2), whole(0, 4, 6), ascending(), False, 0, False, None, True),
    lambda: (numbers(5, 2), whole(0, 4, 6), ascending(), False, 2),
)


def bag_back() -> tuple[Any, ...]:
    return (
        numbers(3, 2), whole(0, 4, 6), fixed(torch.tensor([0, 0, 1, 2, 2, 2])),
        fixed(torch.tensor([2, 1, 3])), fixed(torch.zeros(0, dtype=torch.long)), 5,
        False, 0, numbers(6),
    )  # fmt: skip


row("_embedding_bag_dense_backward", bag_back)

# Matrices -------------------------------------------------------------------------------------


def full_rank(*batch: int) -> Any:
    def draw() -> Any:
        return torch.randn(*batch, 3, 3) + 4 * torch.eye(3)

    return Given(draw(), draw)


def spread(*batch: int) -> Any:
    """Symmetric with eigenvalues apart, whatever parts of two such matrices meet."""

    def draw() -> Any:
        return torch.diag_embed(torch.rand(*batch, 3) + torch.tensor([1.0, 4.0, 8.0]))

    return Given(draw(), draw)


rows(
    "_linalg_svd linalg_qr linalg_inv_ex linalg_lu_factor_ex _linalg_det "
    "_linalg_slogdet linalg_lu linalg_matrix_exp linalg_eig",
    lambda: (full_rank(),),
    lambda: (full_rank(3),),
)
rows(
    "linalg_cholesky_ex _linalg_eigh cholesky cholesky_inverse",
    lambda: (spread(3),),
    lambda: (spread(),),
)
row(
    "_linalg_solve_ex",
    lambda: (full_rank(3), numbers(3, 3, 2)),
    lambda: (full_rank(3), numbers(3, 3)),
    lambda: (full_rank(), numbers(3, 2)),
)
row("linalg_solve_triangular", lambda: (full_rank(3), numbers(3, 3, 2), {"upper": True}))
row("triangular_solve", lambda: (numbers(3, 3, 2), full_rank(3)))
row("cholesky_solve", lambda: (numbers(3, 3, 2), spread(3)))
row(
    "linalg_lu_solve",
    lambda: (
        full_rank(3),
        fixed(torch.tensor([1, 2, 3], dtype=torch.int32).expand(3, 3)),
        numbers(3, 3, 2),
    ),
)
row("linalg_pinv.atol_rtol_float", lambda: (full_rank(3),))
row(
    "linalg_householder_product",
    lambda: (numbers(3, 3, 2), numbers(3, 2)),
    lambda: (numbers(3, 2), numbers(2)),
)
row("_linalg_solve_ex", lambda: (full_rank(), numbers(3)))
