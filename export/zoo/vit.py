"""Vision transformers in the sizes of timm, and smaller ones; parameters have timm's names, so its weights fit.

The paper's weights come from `transformers`, which names them differently and keeps query, key and value apart;
`timm_names` translates such files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsyedge.edge.errors import ConfigError
from sparsyedge.export.model_spec import ModelSpec

__all__ = ["VITS", "ViT", "timm_names"]

DEVIATION = 0.02
# The usual one of ViT, not of torch.
EPSILON = 1e-6


class Attention(nn.Module):
    """Every token looks at every other, under several heads."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, channels = x.shape
        split = self.qkv(x).reshape(samples, tokens, 3, self.heads, channels // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value)
        mixed: Tensor = self.proj(seen.transpose(1, 2).reshape(samples, tokens, channels))
        return mixed


class Mlp(nn.Module):
    """Two linear layers on every token by itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, 4 * channels)
        self.fc2 = nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return mixed


class Block(nn.Module):
    """Attention, then two linear layers, each with a LayerNorm in front and a shortcut around."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=EPSILON)
        self.attn = Attention(channels, heads)
        self.norm2 = nn.LayerNorm(channels, eps=EPSILON)
        self.mlp = Mlp(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        deeper: Tensor = x + self.mlp(self.norm2(x))
        return deeper


class PatchEmbed(nn.Module):
    """An image as tokens, one for each patch."""

    def __init__(self, inputs: int, channels: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(inputs, channels, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.proj(x).flatten(2).transpose(1, 2)
        return tokens


class ViT(nn.Module):
    """A vision transformer; `spec.width` is the number of channels per head, 64 in all sizes of timm.

    `patch` is the side of a patch in pixels, `depth` the number of blocks.
    """

    def __init__(self, spec: ModelSpec, *, patch: int, depth: int, heads: int) -> None:
        super().__init__()
        inputs, height, width = spec.input_shape
        if height % patch or width % patch:
            raise ConfigError(
                f"model {spec.model} cuts images into patches of {patch} x {patch} pixels, the data has images of "
                f"{height} x {width}; resize them to a multiple of {patch}, or choose another --model"
            )
        channels = heads * spec.width
        patches = (height // patch) * (width // patch)
        self.patch_embed = PatchEmbed(inputs, channels, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, channels))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + patches, channels) * DEVIATION)
        self.blocks = nn.Sequential(*(Block(channels, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(channels, eps=EPSILON)
        self.head = nn.Linear(channels, spec.outputs)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x)
        first = self.cls_token.expand(x.shape[0], -1, -1)
        tokens = self.blocks(torch.cat([first, patches], dim=1) + self.pos_embed)
        logits: Tensor = self.head(self.norm(tokens)[:, 0])
        return logits


VITS: Mapping[str, Callable[[ModelSpec], nn.Module]] = {
    "vit_tiny": partial(ViT, patch=4, depth=12, heads=3),
    "vit_tiny-4": partial(ViT, patch=4, depth=4, heads=3),
    "vit_tiny_patch16_224": partial(ViT, patch=16, depth=12, heads=3),
    "vit_base": partial(ViT, patch=16, depth=12, heads=12),
}
"""`vit_tiny` is for images of 32 pixels, `vit_tiny-4` the same with 4 blocks, which is exported in a third of the time.
The last two are timm's vit_tiny_patch16_224 and vit_base_patch16_224 on images of 224 pixels."""


def timm_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a ViT saved by `transformers`, under timm's names; any other weights as they are."""
    if not any(name.startswith("vit.embeddings.") for name in weights):
        return dict(weights)
    found = {_timm_name(name): tensor for name, tensor in weights.items()}
    for name in [name for name in found if ".attn.query." in name]:
        parts = [found.pop(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
        found[name.replace(".query.", ".qkv.")] = torch.cat(parts)
    return found


# In this order: the first ends with what the second replaces.
_RENAMED = (
    ("attention.output.dense", "attn.proj"),
    ("output.dense", "mlp.fc2"),
    ("intermediate.dense", "mlp.fc1"),
    ("attention.attention", "attn"),
    ("layernorm_before", "norm1"),
    ("layernorm_after", "norm2"),
    ("vit.encoder.layer.", "blocks."),
    ("vit.embeddings.patch_embeddings.projection", "patch_embed.proj"),
    ("vit.embeddings.position_embeddings", "pos_embed"),
    ("vit.embeddings.cls_token", "cls_token"),
    ("vit.layernorm.", "norm."),
    ("classifier.", "head."),
)


def _timm_name(name: str) -> str:
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    return name
