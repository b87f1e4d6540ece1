"""As many positions a step as are confident enough (Fast-dLLM, arXiv 2505.22618)."""

from dataclasses import dataclass

import torch

from maskmi.decoding.select import at_positions, first, leading, rising
from maskmi.decoding.state import Decision, View


@dataclass(frozen=True)
class ConfidenceThreshold:
    """Commit every position whose largest probability is at least ``threshold``, and always the most confident one.

    Source: Fast-dLLM, arXiv 2505.22618, default 0.9 as there.
    """

    threshold: float = 0.9

    def __post_init__(self):
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is a probability in 0 … 1, not {self.threshold}")

    def __call__(self, view: View) -> Decision:
        confident = view.masked & (view.confidence >= self.threshold)
        return Decision(confident | first(-view.confidence, view.masked, 1))


@dataclass(frozen=True)
class ConfidenceFactor:
    """Commit, by falling confidence c, the leading run with ``c_(n) >= 1 - factor / (n + 1)``; n counts from 1.

    Source: the factor strategy of Fast-dLLM, arXiv 2505.22618: the more positions are taken at once, the surer each
    must be. The most confident position is always taken, also where the rule would refuse it.
    """

    factor: float

    def __post_init__(self):
        if not self.factor >= 0:
            raise ValueError(f"factor must be 0 or more, not {self.factor}")

    def __call__(self, view: View) -> Decision:
        order = rising(-view.confidence, view.masked)
        n = torch.arange(1, order.shape[1] + 1, device=order.device)
        fits = view.confidence.gather(1, order) >= 1 - self.factor / (n + 1)
        return Decision(at_positions(order, leading(fits | (n == 1))) & view.masked)
