"""The Sudoku masked diffusion model: a pre-norm transformer encoder over 81 cells.

It has the paper's 4,158,346 parameters (arXiv 2605.20187, Sudoku experiment). The mask ratio is not an input: how many
cells are masked can be read off the tokens. Heads may be confined to rows, columns and boxes, which costs no parameter.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskmi.model import Output
from maskmi.sudoku.grid import relations

VALUES = "123456789"
MASK = len(VALUES)
CELLS = 81
WIDTH = 384
LAYERS = 4
FEED_FORWARD = 512
HEADS = 6


class Layer(nn.Module):
    """Pre-norm self-attention and feed-forward, both with a residual connection."""

    def __init__(self, width: int, feed_forward: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.up = nn.Linear(width, feed_forward)
        self.down = nn.Linear(feed_forward, width)

    def forward(self, x: Tensor, bias: Tensor | None, keep_attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """``x`` [B, L, D], ``bias`` [heads, L, L] added to the scores (``-inf`` confines a head)."""
        batch, length, width = x.shape
        depth = width // self.heads
        q, k, v = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, depth).permute(2, 0, 3, 1, 4)
        scale = depth**-0.5
        attention = None
        if bias is None and not keep_attention and not torch.is_grad_enabled():
            mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
        else:  # on a CPU the fused kernel is slow with a mask, and slow backwards
            scores = (q * scale) @ k.transpose(-1, -2)
            weights = torch.softmax(scores if bias is None else scores + bias, dim=-1)
            attention = weights if keep_attention else None
            mixed = weights @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_feed_forward(x)))), attention


class SudokuMDM(nn.Module):
    """Maps tokens [B, 81] (0–8 are the digits 1–9, 9 is MASK) to logits over the nine digits and hidden states.

    Args:
        confined_heads: how many heads of each layer see only their own row, column and box (that many of each kind).
            0 is a plain transformer; 2 confines all six heads.
    """

    values = VALUES
    hidden_size = WIDTH

    def __init__(self, confined_heads: int = 0):
        super().__init__()
        if not 0 <= 3 * confined_heads <= HEADS:
            raise ValueError(f"confined_heads must lie in 0…{HEADS // 3}, not {confined_heads}")
        self.confined_heads = confined_heads
        self.token = nn.Embedding(len(VALUES) + 1, WIDTH)
        self.row, self.column, self.box = (nn.Embedding(9, WIDTH // 3) for _ in range(3))
        self.layers = nn.ModuleList(Layer(WIDTH, FEED_FORWARD, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head_in = nn.Linear(WIDTH, 512)
        self.head_out = nn.Linear(512, len(VALUES) + 1)  # the paper's count includes a logit for MASK
        for embedding in (self.token, self.row, self.column, self.box):
            nn.init.normal_(embedding.weight, std=0.5)
        for layer in self.layers:  # residual branches start small, so that depth doesn't set the scale
            nn.init.zeros_(layer.out.weight)
            nn.init.zeros_(layer.down.weight)
        cell = torch.arange(CELLS)
        self.register_buffer("units", torch.stack([cell // 9, cell % 9, cell // 27 * 3 + cell % 9 // 3]), False)
        bias = torch.zeros(HEADS, CELLS, CELLS)
        related = torch.as_tensor(relations()) | torch.eye(CELLS, dtype=torch.bool)[..., None]
        for kind in range(3):
            confined = slice(kind * confined_heads, (kind + 1) * confined_heads)
            bias[confined].masked_fill_(~related[..., kind], -torch.inf)
        self.register_buffer("bias", bias if confined_heads else None, False)

    @property
    def device(self) -> torch.device:
        return self.token.weight.device

    def forward(self, tokens: Tensor, attention: bool = False) -> Output:
        """Logits [B, 81, 9], hidden states [B, 81, 384] and, if asked for, attention [B, 4, 6, 81, 81].

        Raises:
            ValueError: if ``tokens`` are not [B, 81] integers in 0…9.
        """
        if tokens.ndim != 2 or tokens.shape[1] != CELLS:
            raise ValueError(f"a Sudoku has {CELLS} cells: tokens must be [B, {CELLS}], not {list(tokens.shape)}")
        positions = torch.cat([self.row(self.units[0]), self.column(self.units[1]), self.box(self.units[2])], -1)
        x = self.token(tokens) + positions
        kept = []
        for layer in self.layers:
            x, weights = layer(x, self.bias, attention)
            kept.append(weights)
        hidden = F.gelu(self.head_in(self.norm(x)))
        # The last product is small; in float32 it spares the logits a rounding to three digits.
        logits = F.linear(hidden.float(), self.head_out.weight.float(), self.head_out.bias.float())
        return Output(logits[..., :MASK], x, torch.stack(kept, 1) if attention else None)
