"""Vision transformers: timm's names and sizes, and weights from files of timm and of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sparsyedge.edge.errors import ConfigError
from sparsyedge.edge.model.methods import make_method
from sparsyedge.export.checked_build import export_model
from sparsyedge.export.model_spec import ModelChoices, ModelSpec
from sparsyedge.export.models import MODELS, build_model, make_module
from sparsyedge.export.zoo.vit import timm_names

SMALL = ModelSpec("vit_tiny-4", 2, 5, (3, 8, 8))


def timm_shapes(
    channels: int, classes: int, *, depth: int = 12, patch: int = 16, tokens: int = 197
) -> dict[str, Tensor]:
    """A state dict with the names, shapes and order of timm's vit_*_patch16_224."""
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, channels),
        "pos_embed": (1, tokens, channels),
        "patch_embed.proj.weight": (channels, 3, patch, patch),
        "patch_embed.proj.bias": (channels,),
    }
    layers = {"attn.qkv": (3, 1), "attn.proj": (1, 1), "mlp.fc1": (4, 1), "mlp.fc2": (1, 4)}
    for block in (f"blocks.{number}" for number in range(depth)):
        for norm in ("norm1", "norm2"):
            shapes |= {f"{block}.{norm}.{part}": (channels,) for part in ("weight", "bias")}
        for layer, (rows, columns) in layers.items():
            shapes[f"{block}.{layer}.weight"] = (rows * channels, columns * channels)
            shapes[f"{block}.{layer}.bias"] = (rows * channels,)
    shapes |= {f"norm.{part}": (channels,) for part in ("weight", "bias")}
    shapes |= {"head.weight": (classes, channels), "head.bias": (classes,)}
    torch.manual_seed(0)
    return {name: torch.randn(shape) * 0.02 for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("name", "channels", "parameters"), [("vit_tiny_patch16_224", 192, 5_717_416), ("vit_base", 768, 86_567_656)]
)
def test_names_and_shapes_are_timms(name: str, channels: int, parameters: int) -> None:
    with torch.device("meta"):  # sizes need no weights
        model = MODELS[name](ModelSpec(name, 64, 1000, (3, 224, 224)))
        wanted = timm_shapes(channels, 1000)
    found = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    assert found == {key: tuple(tensor.shape) for key, tensor in wanted.items()}
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def started_from(weights: Mapping[str, Tensor], spec: ModelSpec, folder: Path) -> dict[str, Tensor]:
    save_file(dict(weights), folder / "weights.safetensors")
    choices = ModelChoices(init=folder / "weights.safetensors")
    model, holds_theta = make_module(spec, beta=1.25, seed=0, choices=choices)
    assert holds_theta
    return model.state_dict()


@pytest.mark.heavy
def test_a_file_of_timm_loads_as_it_is(tmp_path: Path) -> None:
    weights = timm_shapes(192, 1000)
    found = started_from(weights, ModelSpec("vit_tiny_patch16_224", 64, 1000, (3, 224, 224)), tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


@pytest.mark.heavy
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_our_vit_answers_as_timms_does(suffix: str, tmp_path: Path) -> None:
    """timm is none of our dependencies: `pip install --no-deps timm torchvision`, of versions that fit torch."""
    timm = pytest.importorskip("timm", reason="no timm here")
    torch.manual_seed(1)
    theirs = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    path = tmp_path / f"weights.{suffix}"
    save = save_file if suffix == "safetensors" else torch.save
    save(theirs.state_dict(), path)
    spec = ModelSpec("vit_tiny_patch16_224", 64, 1000, (3, 224, 224))
    ours, _ = make_module(spec, beta=1.25, seed=0, choices=ModelChoices(init=path))
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        difference = (ours.eval()(images) - theirs(images)).abs().max()
    assert difference <= 1e-5


@pytest.mark.heavy
def test_frozen_layers_do_not_blur_the_comparison_with_torch(tmp_path: Path) -> None:
    # Filled with numbers about 1, as scales are for the comparison, they magnified rounding: to 3e-5 here, to 2e-3 in
    # vit_tiny_patch16_224.
    method = make_method("sparsyfed", sparsity=0.9)
    spec = ModelSpec("vit_tiny-4", 16, 5, (3, 8, 8))
    _, parity = export_model(spec, method, tmp_path / "out", choices=ModelChoices(train="last:1"))
    assert parity.loss <= 1e-6
    assert parity.gradient <= 1e-5


def small_weights(classes: int) -> dict[str, Tensor]:
    return timm_shapes(6, classes, depth=4, patch=4, tokens=5)


@pytest.mark.parametrize("classes", [1000, None])
def test_the_last_layer_begins_at_random_if_the_file_has_it_for_other_classes(
    classes: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = small_weights(classes or 5)
    if classes is None:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    found = started_from(weights, SMALL, tmp_path)
    assert torch.equal(found["blocks.3.mlp.fc2.weight"], weights["blocks.3.mlp.fc2.weight"])
    assert torch.equal(found["head.weight"], build_model(SMALL, beta=1.0, seed=0).state_dict()["head.weight"])
    assert "head begins at random, for 5 classes" in caplog.text


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not fit vit_tiny-4: .* has shape \(1, 1, 9\) there"):
        started_from(timm_shapes(9, 5, depth=4, patch=4, tokens=5), SMALL, tmp_path)


def transformers_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights as ViTForImageClassification saves them."""
    found: dict[str, Tensor] = {}
    names = {
        "cls_token": "vit.embeddings.cls_token",
        "pos_embed": "vit.embeddings.position_embeddings",
        "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
        "norm": "vit.layernorm",
        "head": "classifier",
    }
    inside = {
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    for name, tensor in weights.items():
        layer, _, part = name.rpartition(".")
        if not name.startswith("blocks."):
            found[names[name] if name in names else f"{names[layer]}.{part}"] = tensor
            continue
        _, number, inner = layer.split(".", 2)
        place = f"vit.encoder.layer.{number}"
        if inner == "attn.qkv":
            for which, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                found[f"{place}.attention.attention.{which}.{part}"] = third.clone()
        else:
            found[f"{place}.{inside[inner]}.{part}"] = tensor
    return found


def test_a_file_of_transformers_is_translated(tmp_path: Path) -> None:
    weights = small_weights(5)
    theirs = transformers_names(weights)
    assert "vit.encoder.layer.3.attention.attention.key.bias" in theirs
    assert set(timm_names(theirs)) == set(weights)
    found = started_from(theirs, SMALL, tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


def test_images_that_cannot_be_cut_into_patches_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"patches of 16 x 16 pixels, the data has images of 32 x 30"):
        build_model(ModelSpec("vit_base", 64, 5, (3, 32, 30)), beta=1.0, seed=0)
