"""The positions that look most at what is visible (the order of AGDO, arXiv 2606.12273)."""

from dataclasses import dataclass

import torch

from maskmi.decoding.select import first
from maskmi.decoding.state import Decision, View


@dataclass(frozen=True)
class AGDO:
    """Commit the ``k`` masked positions whose attention goes most to visible ones (all that are left, if fewer).

    The score is ``S_i = sum of A_ij over visible j``, ``A`` the last layer's attention of query i to key j, averaged
    over heads. Source: the denoising order of AGDO, arXiv 2606.12273, which trains with it; here it only decodes. It
    asks where a position looks, not how sure it is of its value. Padding doesn't count as visible. While nothing is
    visible every score would be 0: then the most confident positions are taken.

    Raises:
        ValueError: for k below 1, and when called with a model that returns no attention maps.
    """

    k: int = 1
    needs_attention = True

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"k must be at least 1, not {self.k}")

    def __call__(self, view: View) -> Decision:
        if view.output.attention is None:
            raise ValueError("the model returned no attention maps: use another decoder, or a model that has them")
        visible = ~view.masked & (view.tokens != view.mask + 1)  # padding follows MASK in the order of tokens
        attention = view.output.attention[:, -1].float().mean(1)
        score = (attention * visible[:, None]).sum(2)
        score = torch.where(visible.any(1, keepdim=True), score, view.confidence)
        return Decision(first(-score, view.masked, self.k))
