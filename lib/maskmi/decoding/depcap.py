"""Blocks that end where the last one's influence does, and no two rivals at once within them (DepCap, 2604.15750)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from maskmi.decoding.select import first, independent_set, rising
from maskmi.decoding.state import Decision, View
from maskmi.model import kl_divergence

LARGEST_INFLUENCE = 1e6  # nats; stands for infinity where a value has become impossible, so that differences exist


@dataclass(frozen=True)
class DepCap:
    """Decode blocks of adaptive length, from the left; within a block commit confident positions that don't conflict.

    **Length.** At the start of a block, over the window of the next ``longest`` blanks: influence
    ``I_i = KL(p_i now ‖ p_i at the start of the last block)`` and entropy ``H_i``, each averaged over three neighbours
    (zeros beyond the window) and normalised, ``(x - median) / interquartile range``. The block ends before the first
    blank with ``I - lam * H < 0``, but has ``shortest`` to ``longest`` blanks, or all that are left. The first block
    has ``shortest``. This uses the step's own pass.

    **Within.** Candidates have ``c >= low``. Two conflict if ``log p_i(x_j) + log p_j(x_i) > gamma`` for the values x
    that would be committed: each could have been the other's. Every ``c >= high`` is committed, candidates that
    conflict with one of those are dropped, the rest are taken by falling confidence unless in conflict with one taken.
    The most confident position of the block is always committed.

    Source: arXiv 2604.15750 and its code, with their defaults; there the KL divergence is over the 64 most probable
    values, here over all. ``gamma`` -16 is made for 126,000 values: with 9 or 20 nearly every pair conflicts under it,
    which leaves the threshold ``high`` alone; sweep it from -2 to -10. A block is counted in blanks, positions that
    weren't given, which is the same where a prompt precedes all of them.
    """

    shortest: int = 8
    longest: int = 128
    lam: float = 1.0
    low: float = 0.8
    high: float = 0.95
    gamma: float = -16.0

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"1 <= shortest <= longest must hold, not {self.shortest} and {self.longest}")
        if not (self.lam >= 0 and self.lam < float("inf")):
            raise ValueError(f"lam must be finite and 0 or more, not {self.lam}")
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"low and high must be probabilities with low <= high, not {self.low} and {self.high}")
        if self.gamma != self.gamma:
            raise ValueError("gamma must be a number of nats, not NaN")

    def __call__(self, view: View) -> Decision:
        number = (~view.given).cumsum(1) - 1  # of each blank
        end = view.recall("depcap_end", torch.zeros_like(view.step))
        start = view.recall("depcap_start", view.log_probs)
        new = ~(view.masked & (number < end[:, None])).any(1)
        if new.any():
            end = torch.where(new, end + self._length(view, start), end)
            start = torch.where(new[:, None, None], view.log_probs, start)
        view.memory["depcap_end"], view.memory["depcap_start"] = end, start
        return Decision(self._accept(view, view.masked & (number < end[:, None])))

    def _length(self, view: View, start: Tensor) -> Tensor:
        """Length ``[B]`` of a block that starts now, in blanks; without meaning where none does."""
        left = view.masked.sum(1)
        window = rising(torch.zeros_like(view.entropy), view.masked)[:, : self.longest]  # in the order of positions
        inside = torch.arange(window.shape[1], device=window.device) < left[:, None]
        influence = kl_divergence(view.log_probs, start).clamp_max(LARGEST_INFLUENCE)
        influence, entropy = (_normalised(x.gather(1, window).double(), inside) for x in (influence, view.entropy))
        grows = (influence - self.lam * entropy >= 0) & inside
        length = grows.long().cumprod(1).sum(1).masked_fill(view.step == 0, 0)
        return torch.minimum(length.clamp(self.shortest, self.longest), left)

    def _accept(self, view: View, block: Tensor) -> Tensor:
        rivals = view.log_probs.gather(2, view.proposal[:, None].expand(-1, block.shape[1], -1))  # log p_i(x_j)
        conflict = rivals + rivals.mT > self.gamma
        candidates = block & (view.confidence >= self.low)
        sure = candidates & (view.confidence >= self.high)
        open_ = candidates & ~sure & ~(conflict & sure[:, None]).any(2)
        return sure | independent_set(view.confidence, open_, conflict) | first(-view.confidence, block, 1)


def _normalised(x: Tensor, inside: Tensor) -> Tensor:
    """``x [B, W]`` averaged over three neighbours, then ``(x - median) / interquartile range``, per row ``inside``.

    Quantiles are entries of the row: of n sorted ones that number ``floor(q (n - 1))``, counted from 0.
    """
    padded = F.pad(x.masked_fill(~inside, 0), (1, 1))
    x = (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3
    ranked = x.masked_fill(~inside, torch.inf).sort(1).values
    last = (inside.sum(1, keepdim=True) - 1).clamp_min(0)
    low, median, high = (ranked.gather(1, last * quarter // 4) for quarter in (1, 2, 3))
    return (x - median) / (high - low).clamp_min(1e-15)
