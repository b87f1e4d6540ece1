"""One position a step."""

from dataclasses import dataclass

from maskmi.decoding.select import first
from maskmi.decoding.state import ORDER, Decision, View


@dataclass(frozen=True)
class Sequential:
    """Commit a single position: the one of least entropy, or the next of a random order.

    Order ``'entropy'`` is the reference of arXiv 2605.20187. Order ``'random'`` draws one uniform order for each
    sequence, as masked models are trained: at temperature 1 it samples the model's own any-order distribution, the
    fairer reference for sampled sequences. For a model whose conditionals come from one joint distribution both orders
    sample just that; a network's don't quite, and then choosing by entropy skews what is sampled.
    """

    order: str = "entropy"

    def __post_init__(self):
        if self.order not in ("entropy", "random"):
            raise ValueError(f"order must be 'entropy' or 'random', not {self.order!r}")

    def __call__(self, view: View) -> Decision:
        key = view.entropy if self.order == "entropy" else view.noise(ORDER)
        return Decision(first(key, view.masked, 1))
