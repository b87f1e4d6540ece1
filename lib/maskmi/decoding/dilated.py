"""Positions far apart first, then halfway between them (DUS, arXiv 2506.19037)."""

from dataclasses import dataclass

import torch

from maskmi.decoding.state import Decision, View

LEVELS = 64  # more than the levels of any block: a stride halves at each


@dataclass(frozen=True)
class Dilated:
    """Commit, block by block from the left, the multiples of strides ``B/2, B/4, … 1`` that are still masked.

    Source: the dilated unmasking scheduler, arXiv 2506.19037 (base 2). ``B`` is ``block``, or all blanks of the
    sequence in one block. Strides are rounded down. The order is fixed in advance, whatever the model says; a block
    takes at most ``floor(log2 B)`` steps (one where B is 1).

    Positions are counted among those that weren't given, which is the paper's count where a prompt precedes what is
    generated. In an infilling such as Sudoku, members of one step are then still at least a stride apart. Two options
    of the authors' code aren't here: merging the last stride into the one before where it would reveal fewer
    positions, and leaving out positions of low confidence.
    """

    block: int | None = None

    def __post_init__(self):
        if self.block is not None and self.block < 1:
            raise ValueError(f"block must be at least 1, or None for the whole sequence, not {self.block}")

    def __call__(self, view: View) -> Decision:
        rank = (~view.given).cumsum(1) - 1
        size = rank[:, -1:] + 1 if self.block is None else torch.full_like(rank[:, :1], self.block)
        within = rank % size
        level, stride = torch.full_like(rank, LEVELS), size
        for n in range(int(size.max()).bit_length()):
            stride = (stride // 2).clamp_min(1)
            level = torch.where(within % stride == 0, level.clamp_max(n), level)
        turn = (rank // size * LEVELS + level).masked_fill(~view.masked, torch.iinfo(rank.dtype).max)
        return Decision(view.masked & (turn == turn.amin(1, keepdim=True)))
