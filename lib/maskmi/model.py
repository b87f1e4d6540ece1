"""What every masked model looks like to the rest of the library, and the distributions read off it.

A masked model maps tokens to logits over the *values* (9 digits, 20 amino acids) and to last hidden states.
Tokens are the same for all models: ``0 … V-1`` are values, ``V`` is MASK, ``V+1`` is padding (only after the end of a
sequence); what an adapter puts above that is visible context which is never generated. Everything is in nats.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Output(NamedTuple):
    """One evaluation of a model on ``B`` sequences of length ``L``."""

    logits: Tensor  # [B, L, V], over the values only
    hidden: Tensor  # [B, L, D], the last hidden states, which the head reads
    attention: Tensor | None = None  # [B, layers, heads, L, L]; only when asked for


class MaskedModel(Protocol):
    """The interface that probing, heads and decoders need. Calling it is one pass per sequence."""

    values: Sequence[str]  # in token order; a string where each is one character
    hidden_size: int
    device: torch.device

    def __call__(self, tokens: Tensor, attention: bool = False) -> Output: ...


def mask_token(model: MaskedModel) -> int:
    return len(model.values)


def pad_token(model: MaskedModel) -> int:
    return len(model.values) + 1


def log_probabilities(logits: Tensor, where: Tensor | None = None) -> Tensor:
    """Log-softmax over the last axis in float32 (float64 stays). ``-inf`` logits are impossible values.

    Args:
        where: bool, without the last axis: the rows that matter. The others aren't checked and may come out as NaN.

    Raises:
        ValueError: where a logit is NaN or +inf, or every logit of a row is ``-inf``.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    # A row's maximum is finite exactly when the row is usable (NaN and +inf propagate to it).
    top = logits.detach().amax(-1, keepdim=True)
    usable = torch.isfinite(top.squeeze(-1))
    if not (usable if where is None else usable | ~where).all():
        raise ValueError("logits hold NaN, +inf, or a row of only -inf: the model's output is not a distribution")
    # torch.log_softmax takes three times as long on the processor when the last axis is as short as here.
    shifted = logits - top
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def entropy(log_p: Tensor) -> Tensor:
    """Entropy in nats over the last axis of log-probabilities, never negative, with ``0 log 0 = 0``."""
    return -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(-1).clamp_max(0.0)


def entropy_of(p: Tensor) -> Tensor:
    """Entropy in nats over the last axis of probabilities, never negative, with ``0 log 0 = 0``."""
    return torch.special.entr(p).sum(-1).clamp_min(0)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """``KL(p ‖ q)`` in nats over the last axis of log-probabilities; ``inf`` where q excludes what p allows.

    A value whose probability is zero, or too small for the number format, adds nothing.
    """
    p = log_p.exp()
    return torch.where(p == 0, 0.0, p * (log_p - log_q)).sum(-1).clamp_min(0)
