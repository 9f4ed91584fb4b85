"""Networks for accelerators: BERT, DLRM and Conformer at published sizes, weights random.

nnstretch accelerate examples/accelerator/networks.py:bert_base?tokens=128 --accelerator stcp920 --batch 32
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class SelfAttention(nn.Module):
    """Attention of `heads` heads with a projection each for queries, keys, values and the result."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)

    def split(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length, width = tokens.shape
        return tokens.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        parts = [self.split(layer(tokens)) for layer in (self.query, self.key, self.value)]
        mixed = scaled_dot_product_attention(*parts).transpose(1, 2)
        return self.output(mixed.reshape(tokens.shape))


class EncoderLayer(nn.Module):
    """Layer of BERT: attention and two linear layers, each with a sum and a norm behind it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = self.norm1(self.attention(tokens) + tokens)
        hidden = nn.functional.gelu(self.wide(tokens))
        return self.norm2(self.narrow(hidden) + tokens)


class Bert(nn.Module):
    """Encoder of BERT over token ids, with the two outputs of question answering a token."""

    def __init__(self, layers: int, width: int, heads: int, tokens: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.answer = nn.Linear(width, 2)
        self.example_inputs = (words - 1 - torch.arange(tokens).remainder(words).unsqueeze(0),)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        tokens = self.norm(self.words(ids) + self.positions)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.answer(tokens)


def bert_base(tokens: int = 128, layers: int = 12, words: int = 30522) -> nn.Module:
    """Build BERT-base; `words` shortens the table of words, of which few rows are read."""
    return Bert(layers, 768, 12, tokens, words)


def bert_large(tokens: int = 384, layers: int = 24, words: int = 30522) -> nn.Module:
    """Build BERT-large."""
    return Bert(layers, 1024, 16, tokens, words)


class Dlrm(nn.Module):
    """Recommendation: dense features through a multilayer perceptron, pairs of all vectors behind."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bottom = perceptron([13, 512, 256, width])
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        vectors = tables + 1
        self.top = perceptron([width + vectors * vectors, 1024, 1024, 512, 256, 1])
        self.example_inputs = (torch.zeros(1, 13), torch.full((1, tables), rows - 1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        rows = [table(ids[:, number]) for number, table in enumerate(self.tables)]
        vectors = torch.stack([bottom, *rows], dim=1)
        pairs = torch.matmul(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([bottom, pairs], dim=1))


def perceptron(sizes: list[int]) -> nn.Sequential:
    """Build linear layers with a ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def dlrm(rows: int = 300_000, tables: int = 26, width: int = 128) -> nn.Module:
    """Build DLRM at MLPerf's sizes, with `rows` a table where the memory holds no more."""
    return Dlrm(tables, rows, width)


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention, convolution over frames, half a feed-forward layer."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.before, self.after = feed_forward(width), feed_forward(width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.gate = nn.Conv1d(width, 2 * width, 1)
        self.frames = nn.Conv1d(width, width, window, padding=window // 2, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.out = nn.Conv1d(width, width, 1)
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens + 0.5 * self.before(tokens)
        tokens = tokens + self.attention(self.norm1(tokens))
        frames = nn.functional.glu(self.gate(self.norm2(tokens).transpose(1, 2)), dim=1)
        frames = nn.functional.silu(self.batch_norm(self.frames(frames)))
        tokens = tokens + self.out(frames).transpose(1, 2)
        return self.last(tokens + 0.5 * self.after(tokens))


def feed_forward(width: int) -> nn.Sequential:
    """Build a feed-forward layer with its norm in front."""
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
    )


class Conformer(nn.Module):
    """Encoder of speech frames."""

    def __init__(self, blocks: int, width: int, heads: int, window: int, frames: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ConformerBlock(width, heads, window) for _ in range(blocks))
        self.example_inputs = (torch.zeros(1, frames, width),)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            tokens = block(tokens)
        return tokens


def conformer(frames: int = 512, blocks: int = 16, width: int = 256) -> nn.Module:
    """Build a Conformer of 16 blocks, width 256, 4 heads, window 31."""
    return Conformer(blocks, width, 4, 31, frames)
