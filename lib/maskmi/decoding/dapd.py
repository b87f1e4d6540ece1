"""A set of positions of which no two attend to each other (DAPD, arXiv 2603.12996)."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from maskmi.decoding.select import first, independent_set
from maskmi.decoding.sources import AttentionMatrix
from maskmi.decoding.state import Decision, View


@dataclass(frozen=True)
class DAPD:
    """Commit a maximal set of masked positions of which no two are joined by an edge of the attention graph.

    An edge joins i and j where their entry ``s_ij`` of the matrix is above ``threshold``. Positions are scanned by
    falling ``(sum of s_ij over masked j) * c_i``, hubs first, and taken where no edge leads to one already taken.
    Once fewer than half of the positions that weren't given are masked, the graph is left aside: every position with
    ``c > confidence`` is committed, and always the most confident one.

    Source: arXiv 2603.12996 (independent sets by Welsh and Powell's order; attention of the last 30 % of layers,
    symmetrised, see :class:`maskmi.decoding.sources.AttentionMatrix`). The paper's edge threshold may change with the
    step; here it is one number. It is in the matrix' unit: attention spread evenly over n positions gives entries of
    1/n, so sweep around that. Any other source serves as well, for example predicted mutual information.
    """

    threshold: float
    confidence: float = 0.9
    pairwise: Callable = field(default_factory=AttentionMatrix)

    def __post_init__(self):
        if not self.threshold >= 0:
            raise ValueError(f"threshold must be 0 or more, not {self.threshold}")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence is a probability in 0 … 1, not {self.confidence}")
        if self.pairwise is None:
            raise ValueError("the graph needs a matrix: leave pairwise out for attention, or name another source")

    def __call__(self, view: View) -> Decision:
        early = 2 * view.masked.sum(1, keepdim=True) >= (~view.given).sum(1, keepdim=True)
        weight = view.pairwise.sum(2) * view.confidence
        apart = independent_set(weight, view.masked & early, view.pairwise > self.threshold)
        sure = view.masked & (view.confidence > self.confidence) | first(-view.confidence, view.masked, 1)
        return Decision(torch.where(early, apart, sure))
