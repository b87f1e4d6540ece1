"""A fixed number of positions a step, by margin."""

from dataclasses import dataclass

from maskmi.decoding.select import first
from maskmi.decoding.state import Decision, View


@dataclass(frozen=True)
class Margin:
    """Commit the ``k`` positions of largest top-1 minus top-2 probability (all that are left, if fewer).

    Source: arXiv 2502.06768, with k=1 their "top probability margin". The margin sees two rival values where the top
    probability alone does not.
    """

    k: int

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"k must be at least 1, not {self.k}")

    def __call__(self, view: View) -> Decision:
        return Decision(first(-view.margin, view.masked, self.k))
