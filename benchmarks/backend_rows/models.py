"""The models of `backends.py` in plain torch.nn: a GPT as nanoGPT writes it, a ViT, a ResNet and an LSTM.

Those for `--model my.module:factory` return the mean loss of their batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainBlock(nn.Module):
    """A block of `PlainGPT`."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm = nn.LayerNorm(dim, bias=False)
        self.attention = nn.ModuleDict(
            {"qkv": nn.Linear(dim, 3 * dim, bias=False), "out": nn.Linear(dim, dim, bias=False)}
        )
        self.feed_forward_norm = nn.LayerNorm(dim, bias=False)
        self.feed_forward = nn.ModuleDict(
            {"up": nn.Linear(dim, 4 * dim, bias=False), "down": nn.Linear(4 * dim, dim, bias=False)}
        )

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Causal attention and GELU, each after a norm and with a residual connection."""
        rate = self.dropout if self.training else 0.0
        rows = self.attention["qkv"](self.attention_norm(x_BLD)).unflatten(-1, (self.heads, 3, -1))
        q_BNLH, k_BNLH, v_BNLH = (part.transpose(1, 2) for part in rows.unbind(3))
        y_BNLH = F.scaled_dot_product_attention(q_BNLH, k_BNLH, v_BNLH, dropout_p=rate, is_causal=True)
        x_BLD = x_BLD + F.dropout(self.attention["out"](y_BNLH.transpose(1, 2).flatten(2)), rate)
        h_BLF = F.gelu(self.feed_forward["up"](self.feed_forward_norm(x_BLD)), approximate="tanh")
        return x_BLD + F.dropout(self.feed_forward["down"](h_BLF), rate)


class PlainGPT(nn.Module):
    """The recipes `nanogpt:*` written with torch's own functions; its parameters have the recipes' names."""

    def __init__(self, layers: int, dim: int, heads: int, vocab_size: int, seq_len: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.embed, self.positions = nn.Embedding(vocab_size, dim), nn.Embedding(seq_len, dim)
        self.blocks = nn.ModuleList(PlainBlock(dim, heads, dropout) for _ in range(layers))
        self.head = nn.ModuleDict(
            {"norm": nn.LayerNorm(dim, bias=False), "out": nn.Linear(dim, vocab_size, bias=False)}
        )
        self.head["out"].weight = self.embed.weight

    def forward(self, token_BL: Tensor, target_BL: Tensor) -> Tensor:
        """The mean cross-entropy."""
        x_BLD = self.embed(token_BL) + self.positions(torch.arange(token_BL.shape[1], device=token_BL.device))
        x_BLD = F.dropout(x_BLD, self.dropout if self.training else 0.0)
        for block in self.blocks:
            x_BLD = block(x_BLD)
        logits_BLV = self.head["out"](self.head["norm"](x_BLD)).float()
        return F.cross_entropy(logits_BLV.flatten(0, 1), target_BL.flatten())


class VitBlock(nn.Module):
    """An encoder block of ViT."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Attention and GELU, each after a norm and with a residual connection."""
        rows = self.qkv(self.attention_norm(x_BLD)).unflatten(-1, (3, self.heads, -1))
        q_BNLH, k_BNLH, v_BNLH = (part.transpose(1, 2) for part in rows.unbind(2))
        y_BNLH = F.scaled_dot_product_attention(q_BNLH, k_BNLH, v_BNLH)
        x_BLD = x_BLD + self.out(y_BNLH.transpose(1, 2).flatten(2))
        return x_BLD + self.down(F.gelu(self.up(self.feed_forward_norm(x_BLD))))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """ViT with a class token (Dosovitskiy et al., 2021); the default is B/16 for 224 x 224."""

    def __init__(
        self, layers: int = 12, dim: int = 768, heads: int = 12, patch: int = 16, size: int = 224, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, stride=patch)
        self.class_token_1D = nn.Parameter(torch.zeros(1, dim))
        self.positions_LD = nn.Parameter(torch.randn((size // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.ModuleList(VitBlock(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, image_BHWC: Tensor, label_B: Tensor) -> Tensor:
        """The mean cross-entropy."""
        x_BLD = self.patches(image_BHWC.permute(0, 3, 1, 2)).flatten(2).transpose(1, 2)
        x_BLD = torch.cat((self.class_token_1D.expand(len(x_BLD), 1, -1), x_BLD), dim=1) + self.positions_LD
        for block in self.blocks:
            x_BLD = block(x_BLD)
        return F.cross_entropy(self.head(self.norm(x_BLD[:, 0])).float(), label_B)


class Bottleneck(nn.Module):
    """A block of ResNet-50; its 3 x 3 convolution has the stride."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = _convolution(channels_in, width, 1)
        self.middle = _convolution(width, width, 3, stride)
        self.expand = _convolution(width, 4 * width, 1)
        same = stride == 1 and channels_in == 4 * width
        self.shortcut = nn.Identity() if same else _convolution(channels_in, 4 * width, 1, stride)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Three convolutions and the shortcut."""
        y_BCHW = self.expand(F.relu(self.middle(F.relu(self.reduce(x_BCHW)))))
        return F.relu(y_BCHW + self.shortcut(x_BCHW))


class ResNet(nn.Module):
    """ResNet with bottlenecks (He et al., 2016; stride in the 3 x 3 convolution); the default is ResNet-50."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = _convolution(3, width, 7, 2)
        blocks, channels = [], width
        for stage, depth in enumerate(depths):
            for number in range(depth):
                blocks.append(Bottleneck(channels, width << stage, 2 if stage and number == 0 else 1))
                channels = 4 * width << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, image_BHWC: Tensor, label_B: Tensor) -> Tensor:
        """The mean cross-entropy."""
        x_BCHW = F.max_pool2d(F.relu(self.stem(image_BHWC.permute(0, 3, 1, 2))), 3, 2, 1)
        return F.cross_entropy(self.head(self.blocks(x_BCHW).mean((2, 3))).float(), label_B)


class LstmModel(nn.Module):
    """A language model of LSTM layers."""

    def __init__(self, layers: int = 2, dim: int = 1024, vocab_size: int = 10_000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.lstm = nn.LSTM(dim, dim, layers, batch_first=True)
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, token_BL: Tensor, target_BL: Tensor) -> Tensor:
        """The mean cross-entropy."""
        states_BLD, _ = self.lstm(self.embed(token_BL))
        return F.cross_entropy(self.head(states_BLD).float().flatten(0, 1), target_BL.flatten())


def resnet(depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> nn.Module:
    """A ResNet whose weights have the memory format channels_last, which cuDNN's kernels for bf16 need."""
    module = ResNet(depths, width, classes)
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _convolution(channels_in: int, channels_out: int, size: int, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out))
