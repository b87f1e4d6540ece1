"""As many positions a step as a budget of entropy allows (EB, arXiv 2505.24857)."""

from dataclasses import dataclass

from maskmi.decoding.select import at_positions, leading, rising
from maskmi.decoding.state import Decision, View


@dataclass(frozen=True)
class EntropyBounded:
    """Commit, by rising proxy, the largest prefix U with ``sum of H over U - max of H over U <= budget`` (nats).

    Source: EB-Sampler, arXiv 2505.24857. The left-hand side bounds the joint error of committing U at once, whatever
    the dependence between its members. ``proxy`` is what orders the positions: ``'entropy'`` (rising), ``'confidence'``
    or ``'margin'`` (falling). The first position always fits. The step's ``spent`` is the left-hand side.
    """

    budget: float
    proxy: str = "entropy"

    def __post_init__(self):
        if not self.budget >= 0:
            raise ValueError(f"budget must be 0 nats or more, not {self.budget}")
        if self.proxy not in ("entropy", "confidence", "margin"):
            raise ValueError(f"proxy must be 'entropy', 'confidence' or 'margin', not {self.proxy!r}")

    def __call__(self, view: View) -> Decision:
        key = {"entropy": view.entropy, "confidence": -view.confidence, "margin": -view.margin}[self.proxy]
        order = rising(key, view.masked)
        entropy = view.entropy.masked_fill(~view.masked, 0).gather(1, order)
        bound = entropy.cumsum(1) - entropy.cummax(1).values
        taken = leading(bound <= self.budget) & view.masked.gather(1, order)
        last = taken.sum(1, keepdim=True) - 1
        return Decision(at_positions(order, taken), spent=bound.gather(1, last).squeeze(1))
