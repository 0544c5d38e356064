"""ViT-tiny for small images: patches of 4 x 4 pixels, 12 blocks of 192 channels and 3 heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsyedge.export.model_spec import ModelSpec

__all__ = ["ViTTiny"]

PATCH = 4
DEPTH = 12
HEADS = 3
DEVIATION = 0.02


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


class Block(nn.Module):
    """Attention, then two linear layers, each with a LayerNorm in front and a shortcut around."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=1e-6)
        self.attn = Attention(channels, heads)
        self.norm2 = nn.LayerNorm(channels, eps=1e-6)
        self.fc1 = nn.Linear(channels, 4 * channels)
        self.fc2 = nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        deeper: Tensor = x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))
        return deeper


class ViTTiny(nn.Module):
    """`spec.width` is the number of channels per head: 64 gives the 192 channels of ViT-tiny."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        inputs, height, width = spec.input_shape
        channels = HEADS * spec.width
        patches = (height // PATCH) * (width // PATCH)
        self.patch_embed = nn.Conv2d(inputs, channels, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, channels))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + patches, channels) * DEVIATION)
        self.blocks = nn.Sequential(*(Block(channels, HEADS) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.head = nn.Linear(channels, spec.outputs)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(x.shape[0], -1, -1)
        tokens = self.blocks(torch.cat([first, patches], dim=1) + self.pos_embed)
        logits: Tensor = self.head(self.norm(tokens)[:, 0])
        return logits
