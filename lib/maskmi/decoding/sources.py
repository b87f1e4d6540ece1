"""Where a decoder's matrix over pairs of positions comes from.

A source is a callable ``(model, view) -> (matrix [B, L, L], passes [B])``: symmetric, zero on the diagonal and outside
masked pairs, and the passes per sequence that it took beyond the step's own. A source that reads attention maps says so
by an attribute ``needs_attention``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from maskmi.decoding.state import View
from maskmi.head import predict
from maskmi.model import MaskedModel
from maskmi.probing import probe, symmetrise


@dataclass(frozen=True)
class HeadMatrix:
    """The matrix that a pair head reads off the step's own hidden states, at no further pass.

    ``head``: callable ``(hidden [B, L, D], masked [B, L]) -> [B, L, L]``. Which quantity it is in depends on what the
    head was trained on (mutual information, total variation).
    """

    head: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, model: MaskedModel, view: View) -> tuple[Tensor, Tensor]:
        return predict(self.head, view.output.hidden, view.masked), torch.zeros_like(view.step)


@dataclass(frozen=True)
class ProbedMatrix:
    """The matrix by probing the model itself, the oracle that a head imitates: up to ``1 + masked * V`` passes a step.

    ``kind``: ``'entropy_drop'`` (the paper's estimator), ``'mixture'`` (never negative), ``'tv'`` or ``'jacobian'``;
    ``tolerance``: error bound in nats for skipping improbable values, see :func:`maskmi.probing.probe`.
    """

    kind: str = "entropy_drop"
    tolerance: float = 0.0

    def __post_init__(self):
        if self.kind not in ("entropy_drop", "mixture", "tv", "jacobian"):
            raise ValueError(f"kind must be 'entropy_drop', 'mixture', 'tv' or 'jacobian', not {self.kind!r}")
        if self.kind == "jacobian" and self.tolerance > 0:
            raise ValueError("the Jacobian needs every value: leave tolerance at 0")

    def __call__(self, model: MaskedModel, view: View) -> tuple[Tensor, Tensor]:
        table = probe(model, view.tokens, tolerance=self.tolerance, jacobian=self.kind == "jacobian")
        matrix, _ = symmetrise(getattr(table, self.kind), table.probed)
        return matrix, table.passes


@dataclass(frozen=True)
class AttentionMatrix:
    """Attention between masked positions: mean over heads and over the last layers, symmetrised.

    Source: DAPD, arXiv 2603.12996, which takes the last 30 % of the layers; here the share is rounded, at least one
    layer. The unit is a share of attention, so the budget needs its own sweep.
    """

    last_fraction: float = 0.3
    needs_attention = True

    def __post_init__(self):
        if not 0 < self.last_fraction <= 1:
            raise ValueError(f"last_fraction must lie in 0 … 1, above 0, not {self.last_fraction}")

    def __call__(self, model: MaskedModel, view: View) -> tuple[Tensor, Tensor]:
        attention = view.output.attention
        if attention is None:
            raise ValueError("the model returned no attention maps: use another source, or a model that has them")
        layers = max(1, round(self.last_fraction * attention.shape[1]))
        mean = attention[:, -layers:].float().mean((1, 2))
        pairs = view.masked[:, :, None] & view.masked[:, None, :]
        pairs = pairs & ~torch.eye(mean.shape[-1], dtype=torch.bool, device=mean.device)
        return ((mean + mean.mT) / 2).masked_fill(~pairs, 0), torch.zeros_like(view.step)
