"""Pseudo-perplexity: how surprising each residue of a sequence is to a masked model that sees all others."""

from typing import NamedTuple

import torch
from torch import Tensor

from maskmi.model import MaskedModel, log_probabilities, mask_token, pad_token
from maskmi.protein.adapter import complete


class PseudoPerplexity(NamedTuple):
    """Of ``N`` sequences."""

    value: Tensor  # float64 [N]
    passes: Tensor  # int64 [N]: as many as there are positions to score


@torch.no_grad()
def pseudo_perplexity(
    model: MaskedModel, tokens: Tensor, batch_size: int = 256, where: Tensor | None = None
) -> PseudoPerplexity:
    """``exp`` of the mean of ``-log p(x_i | all others)`` over the positions of each sequence, one pass a position.

    Tokens that are no values of the model (ambiguous residues) are visible context and not scored. ``inf`` where the
    model excludes a residue. A sequence's result doesn't depend on the others, up to rounding.

    Args:
        tokens: complete sequences [N, L].
        batch_size: sequences with one masked position per call of the model.
        where: bool [N, L]: score these positions alone, for instance those that were filled in.

    Raises:
        ValueError: for MASK among the tokens, or a sequence with nothing to score.
    """
    mask, pad = mask_token(model), pad_token(model)
    tokens = complete(tokens, mask, pad)
    scored = tokens < mask if where is None else (tokens < mask) & where.cpu()
    number = scored.sum(1)
    if (number == 0).any():
        raise ValueError(f"sequence {int((number == 0).int().argmax())} has no residue to score: leave it out")
    lengths = (tokens != pad).sum(1)
    order = lengths.argsort(stable=True)  # like lengths share a call
    row, place = scored[order].nonzero(as_tuple=True)
    total = torch.zeros(len(tokens), dtype=torch.float64)
    for sequence, i in zip(order[row].split(batch_size), place.split(batch_size), strict=True):
        each = torch.arange(len(sequence))
        filled = tokens[sequence, : int(lengths[sequence].max())]
        value = filled[each, i]
        filled[each, i] = mask
        log_p = log_probabilities(model(filled.to(model.device)).logits[each, i])
        total.index_add_(0, sequence, log_p[each, value.to(log_p.device)].cpu().double())
    return PseudoPerplexity((-total / number).exp(), number)
