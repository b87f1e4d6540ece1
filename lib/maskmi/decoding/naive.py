"""A fixed number of positions a step, by entropy."""

from dataclasses import dataclass

from maskmi.decoding.select import first
from maskmi.decoding.state import Decision, View


@dataclass(frozen=True)
class Naive:
    """Commit the ``k`` positions of least entropy (all that are left, if fewer).

    Source: the naive parallel decoder of arXiv 2605.20187, after Mask-Predict (Ghazvininejad et al. 2019, without its
    masking again). It has no idea of what it ignores: k is the same whether the positions are certain or not.
    """

    k: int

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"k must be at least 1, not {self.k}")

    def __call__(self, view: View) -> Decision:
        return Decision(first(view.entropy, view.masked, self.k))
