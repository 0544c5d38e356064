"""The dense ops of the general layout at their edges: extreme values, constant rows, single values, bad input."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fixtures.op_cases.case import Array
from fixtures.op_cases.dropout import kept, random_bits
from onnx import TensorProto, helper

from sparsyedge.edge.native import OP_DOMAIN

RunNode = Callable[..., list[Array]]
ModelSession = Callable[..., Any]

F = np.float32
DEPTHWISE = {f"{name}_{axis}": 1 for name in ("stride", "pad") for axis in "hw"}
KERNEL = {"kernel_h": 3, "kernel_w": 3}


def random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- GELU ------------------------------------------------------------------------------------------------------------


def test_gelu_has_all_digits_everywhere(run_node: RunNode) -> None:
    """Also far below zero, where 1 + erf(x) has no digits left."""
    x = np.concatenate([np.linspace(-12, 12, 20000), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    (y,) = run_node("Gelu", [x])
    wanted = np.array([v * math.erfc(-v * math.sqrt(0.5)) / 2 for v in x.astype(np.float64)])
    assert (x != 0).all()
    error = np.abs(y / wanted - 1)
    assert error[np.abs(x) < 5].max() < 4e-7
    assert error.max() < 8e-7


@pytest.mark.parametrize("tanh", [0, 1])
def test_gelu_of_extreme_values_is_their_limit(run_node: RunNode, tanh: int) -> None:
    x = np.array([np.inf, 1e30, 50, -50, -1e30, 0.0, -0.0, np.nan], np.float32)
    (y,) = run_node("Gelu", [x], tanh=tanh)
    assert np.array_equal(y[:7], np.array([np.inf, 1e30, 50, 0, 0, 0, 0], np.float32))
    assert np.isnan(y[7])
    (dx,) = run_node("GeluGrad", [np.ones(4, F), np.array([50, -50, 0, np.nan], F)], tanh=tanh)
    assert np.array_equal(dx[:3], np.array([1, 0, 0.5], np.float32))
    assert np.isnan(dx[3])


# ---- norms -----------------------------------------------------------------------------------------------------------


def test_layer_norm_of_one_column_is_its_beta(run_node: RunNode) -> None:
    x, beta = random(1, 5, 1), np.array([0.75], F)
    y, mean, inv_std = run_node("LayerNormTrain", [x, np.array([2.0], F), beta], outputs=3)
    assert (y == beta).all()
    (dx, *_) = run_node("LayerNormTrainGrad", [random(2, 5, 1), x, mean, inv_std, beta], outputs=3)
    assert np.abs(dx).max() < 1e-3


def test_layer_norm_of_constant_rows_is_finite(run_node: RunNode) -> None:
    x = np.repeat(np.array([[0.0], [3.7], [-1e4]], F), 33, axis=1)
    y, mean, inv_std = run_node("LayerNormTrain", [x], outputs=3)
    assert np.abs(y).max() < 1e-2
    assert np.allclose(inv_std, 1 / np.sqrt(1e-5), rtol=1e-2)
    (dx, *_) = run_node("LayerNormTrainGrad", [random(2, 3, 33), x, mean, inv_std], outputs=3)
    assert np.isfinite(dx).all()


def test_layer_norm_of_no_rows_has_a_gradient_of_zero(run_node: RunNode) -> None:
    x, gamma = np.zeros((0, 5), F), random(1, 5)
    y, mean, inv_std = run_node("LayerNormTrain", [x, gamma, gamma], outputs=3)
    assert y.shape == (0, 5)
    dx, dgamma, dbeta = run_node("LayerNormTrainGrad", [y, x, mean, inv_std, gamma], outputs=3)
    assert dx.shape == (0, 5)
    assert not dgamma.any()
    assert not dbeta.any()


def test_variances_far_from_zero_keep_their_digits(run_node: RunNode) -> None:
    x = random(3, 16, 4, 16, 16) + F(1000)
    vectors = [np.ones(4, F)] * 4
    _, mean, inv_std, *_ = run_node("BatchNormTrain", [x, *vectors], outputs=5)
    wide = x.astype(np.float64)
    assert np.abs(mean / wide.mean((0, 2, 3)) - 1).max() < 1e-7
    assert np.abs(inv_std * np.sqrt(wide.var((0, 2, 3)) + 1e-5) - 1).max() < 1e-6


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1), (1, 3, 1, 1)])
def test_one_value_per_channel_is_refused(run_node: RunNode, shape: tuple[int, ...]) -> None:
    vectors = [np.ones(3, F)] * 4
    with pytest.raises(Exception, match=r"BatchNormTrain: x has shape .*one value per channel and has no variance"):
        run_node("BatchNormTrain", [np.zeros(shape, F), *vectors], outputs=5)
    with pytest.raises(Exception, match=r"BatchNormTrainGrad: x has shape .*train with a batch of at least 2"):
        run_node("BatchNormTrainGrad", [np.zeros(shape, F)] * 2 + vectors[:3], outputs=3)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def test_seeds_and_streams_draw_unrelated_masks() -> None:
    masks = np.array([kept(seed, stream, 0.5, (100_000,)) for seed in (0, 1, 2**32) for stream in (0, 1)])
    assert np.abs(masks.mean(1) - 0.5).max() < 0.01
    related = np.corrcoef(masks.astype(np.float64)) - np.eye(len(masks))
    assert np.abs(related).max() < 0.02


@pytest.mark.parametrize("lag", [1, 2, 16, 192, 768, 65536])
def test_neighbours_in_a_mask_are_unrelated(lag: int) -> None:
    bits = random_bits(7, 3, 400_000).astype(np.float64)
    assert abs(np.corrcoef(bits[:-lag], bits[lag:])[0, 1]) < 0.01


def test_dropout_keeps_its_share_and_the_mean(run_node: RunNode) -> None:
    (y,) = run_node("Dropout", [np.ones(1_000_000, F), np.array([9])], stream=1, ratio=0.3)
    assert abs((y == 0).mean() - 0.3) < 0.003
    assert abs(y.mean() - 1) < 0.005


def test_dropout_does_not_hide_nan(run_node: RunNode) -> None:
    (y,) = run_node("Dropout", [np.full(100, np.nan, F), np.array([9])], stream=1, ratio=0.5)
    assert np.isnan(y).all()


# ---- shapes, memory, bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "others", "attributes"),
    [
        ("GeluGrad", ["x"], {}),
        ("SoftmaxGrad", ["x"], {}),
        ("Dropout", ["seed"], {"stream": 0, "ratio": 0.5}),
        ("LayerNormTrainGrad", ["x", "mean", "inv_std"], {}),
        ("BatchNormTrainGrad", ["x", "gamma", "gamma", "inv_channel"], {}),
    ],
)
def test_a_gradient_in_the_memory_of_dy_has_the_same_bits(
    model_session: ModelSession, op: str, others: list[str], attributes: dict[str, Any]
) -> None:
    feeds = {
        "given": random(1, 40, 65),
        "x": random(2, 40, 65),
        "mean": random(3, 40, 1),
        "inv_std": np.abs(random(4, 40, 1)),
        "gamma": random(5, 65),
        "inv_channel": np.abs(random(6, 65)),
        "seed": np.array([3]),
    }
    feeds = {name: array for name, array in feeds.items() if name == "given" or name in others}
    results = []
    for known in (True, False):
        nodes = [
            helper.make_node("Neg", ["given"], ["negative"]),
            helper.make_node("Neg", ["negative"], ["dy"]),
            helper.make_node(
                op, ["dy", *others], ["dx", "a", "b"][: 3 if "Norm" in op else 1], domain=OP_DOMAIN, **attributes
            ),
            helper.make_node("Neg", ["dx"], ["flipped"]),
        ]
        values = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), None) for n, a in feeds.items()
        ]
        body = helper.make_graph(nodes, "in_place", values, [helper.make_empty_tensor_value_info("flipped")])
        if known:
            body.value_info.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, [40, 65]) for n in ("dy", "dx"))
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OP_DOMAIN, 1)]
        model = helper.make_model(body, opset_imports=opsets, ir_version=9).SerializeToString()
        results.append(model_session(model).run(None, feeds)[0])
    assert results[0].tobytes() == results[1].tobytes()


X4 = np.zeros((2, 3, 5, 5), F)
W4 = np.zeros((3, 1, 3, 3), F)
X2 = np.zeros((4, 3), F)
THREE = np.ones(3, F)
SEED = np.array([1])


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes", "complaint"),
    [
        ("GeluGrad", [X2, X2.T], 1, {}, r"dy has shape \[4,3\] and x has shape \[3,4\]; they must be equal"),
        ("Gelu", [X2], 1, {"tanh": 2}, "attribute tanh is 2, must be from 0 to 1"),
        ("SoftmaxGrad", [X2, X4], 1, {}, r"dy has shape \[4,3\] and y has shape \[2,3,5,5\]; they must be equal"),
        ("SoftmaxGrad", [X2[:, :0]] * 2, 1, {}, r"y has shape \[4,0\], must have a last axis of at least 1 element"),
        ("Dropout", [X2, SEED], 1, {"stream": 0, "ratio": 1.0}, "attribute ratio is 1, must be at least 0 and below 1"),
        ("Dropout", [X2, SEED], 1, {"stream": 0}, "attribute ratio is missing"),
        ("Dropout", [X2, SEED], 1, {"ratio": 0.5}, "attribute stream is missing"),
        ("Dropout", [X2, SEED[:0]], 1, {"stream": 0, "ratio": 0.5}, r"seed has shape \[0\], must hold exactly 1 value"),
        ("LayerNormTrain", [X2, X2], 3, {}, r"gamma has shape \[4,3\], must be \[3\], one value per element"),
        ("LayerNormTrain", [X2], 3, {"epsilon": 0.0}, "attribute epsilon is 0, must be above 0"),
        ("LayerNormTrainGrad", [X2, X2, THREE, THREE], 3, {}, r"mean has shape \[3\], must hold 4 values, one per row"),
        ("BatchNormTrain", [THREE] * 5, 5, {}, r"x has shape \[3\], must be \[N,C\] or \[N,C,...\]"),
        (
            "BatchNormTrain",
            [X4, *[THREE] * 3, X2],
            5,
            {},
            r"var has shape \[4,3\], must be \[3\], one value per channel",
        ),
        ("BatchNormTrain", [X4, *[THREE] * 4], 5, {"momentum": 1.5}, "attribute momentum is 1.5, must be from 0 to 1"),
        ("DepthwiseConv", [X2, W4], 1, DEPTHWISE, r"x has shape \[4,3\], must be \[N,C,H,W\]"),
        ("DepthwiseConv", [X4, W4[:2]], 1, DEPTHWISE, r"w has shape \[2,1,3,3\], must be \[3,1,kh,kw\]"),
        (
            "DepthwiseConv",
            [X4[:, :, :1], W4],
            1,
            {},
            "the kernel reaches over 3 rows, must not be more than .* padding, 1",
        ),
        ("DepthwiseConv", [X4, W4], 1, {"stride_h": 0}, "attribute stride_h is 0, must be from 1 to 64"),
        ("DepthwiseConvGradInput", [X4, W4], 1, DEPTHWISE, "attribute in_h is missing"),
        (
            "DepthwiseConvGradInput",
            [X4, W4],
            1,
            {**DEPTHWISE, "in_h": 6, "in_w": 5},
            r"dy has shape \[2,3,5,5\], must be \[2,3,6,5\]",
        ),
        ("DepthwiseConvGradWeight", [X4, X4], 1, KERNEL, r"dy has shape \[2,3,5,5\], must be \[2,3,3,3\]"),
    ],
)
def test_bad_input_is_refused_with_value_and_limit(
    run_node: RunNode, op: str, inputs: list[Array], outputs: int, attributes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(Exception, match=rf"{op}: {complaint}"):
        run_node(op, [np.ascontiguousarray(array) for array in inputs], outputs, **attributes)
