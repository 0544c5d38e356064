"""What holds for every elementwise op: shapes propagate, and bad inputs are refused in words."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

FloatArray = npt.NDArray[np.float32]
RunOp = Callable[..., FloatArray]
OpModel = Callable[[str, list[Any]], bytes]
ModelSession = Callable[[bytes], Any]

X = np.ones((4, 3), np.float32)

# op -> shapes of its inputs when the tensor it works on has shape S; the output has shape S too
SHAPED_INPUTS: dict[str, Callable[[Any], list[Any]]] = {
    "Decay": lambda s: [s, [1]],
    "DecayGrad": lambda s: [s, s, [1]],
    "DecayStep": lambda s: [s, s, [1], [1]],
    "PowerProp": lambda s: [s, [1], [1]],
    "PowerPropGrad": lambda s: [s, s, [1], [1]],
    "PowerPropStep": lambda s: [s, s, [1], [1], [1]],
    "PruneActivation": lambda s: [s, [64, 3, 3, 3]],
}


@pytest.mark.parametrize("op", SHAPED_INPUTS)
def test_fixed_and_symbolic_dimensions_reach_the_output(
    op_model: OpModel, model_session: ModelSession, op: str
) -> None:
    session = model_session(op_model(op, SHAPED_INPUTS[op](["batch", 3, 8, 8])))
    assert session.get_outputs()[0].shape == ["batch", 3, 8, 8]


@pytest.mark.parametrize("op", SHAPED_INPUTS)
@pytest.mark.parametrize("shape", [None, [None, 3]])
def test_a_shape_that_is_unknown_at_load_time_does_not_mislead_the_next_node(
    op_model: OpModel, model_session: ModelSession, op: str, shape: list[Any] | None
) -> None:
    shapes = SHAPED_INPUTS[op](shape)
    model = onnx.load_from_string(op_model(op, shapes))
    # MatMul refuses at load time whatever has the rank of a scalar.
    model.graph.node.append(onnx.helper.make_node("MatMul", ["output", "matrix"], ["product"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "matrix"))
    model.graph.output[0].name = "product"
    feeds = {f"input{i}": np.ones((5, 3) if s == shape else s, np.float32) for i, s in enumerate(shapes)}
    (product,) = model_session(model.SerializeToString()).run(None, feeds)
    assert product.shape == (5, 2)


@pytest.mark.parametrize(
    ("op", "inputs", "complaint"),
    [
        ("PowerProp", [X, np.ones(2, np.float32), 0.0], r"beta has shape \[2\], must hold exactly 1 value"),
        ("PowerProp", [X, np.ones((0, 4), np.float32), 0.0], r"beta has shape \[0,4\], must hold exactly 1 value"),
        ("PowerProp", [X, 0.0, 0.0], r"beta is 0, must be finite and above 0"),
        ("PowerProp", [X, -1.0, 0.0], r"beta is -1, must be finite and above 0"),
        ("PowerProp", [X, np.nan, 0.0], r"beta is nan, must be finite and above 0"),
        ("PowerProp", [X, 1.25, np.inf], r"weight_decay is inf, must be finite and at least 0"),
        (
            "PowerPropGrad",
            [X, X[:2], 1.25, 0.0],
            r"dtheta has shape \[4,3\] and w has shape \[2,3\]; they must be equal",
        ),
        ("PowerPropGrad", [X, X, np.inf, 0.0], r"beta is inf, must be finite and above 0"),
        ("PowerPropGrad", [X, X, 1.25, X], r"weight_decay has shape \[4,3\], must hold exactly 1 value"),
        ("Decay", [X, -0.5], r"weight_decay is -0\.5, must be finite and at least 0"),
        ("DecayGrad", [X, X.T, 0.0], r"dp has shape \[4,3\] and p has shape \[3,4\]; they must be equal"),
    ],
)
def test_bad_input_is_refused_with_op_node_value_and_limit(
    run_op: RunOp, op: str, inputs: list[FloatArray | float], complaint: str
) -> None:
    with pytest.raises(Exception, match=rf"Name:'the_{op}'.*{op}: {complaint}"):
        run_op(op, *inputs)


def test_a_refused_input_does_not_harm_the_session(run_op: RunOp) -> None:
    with pytest.raises(Exception, match="beta"):
        run_op("PowerProp", X, 0.0, 0.0)
    assert np.array_equal(run_op("PowerProp", X, 1.25, 0.0), X)
