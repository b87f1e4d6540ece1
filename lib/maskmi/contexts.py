"""Contexts to probe and to train on: true sequences masked at random (paper), or states that decoding visits."""

from collections.abc import Mapping

import torch
from torch import Tensor

from maskmi.noise import uniform


def random_contexts(
    sequences: Tensor, mask: int, seed: int, *, min_masked: int = 2, first_index: int = 0, pad: int | None = None
) -> tuple[Tensor, Tensor]:
    """Mask each sequence with its own ratio ``t ~ U[0, 1]``, each position independently with probability ``t``.

    Where that masks fewer than ``min_masked`` positions, those that would have been masked next, had ``t`` been larger,
    are masked too. What happens to sequence ``n`` depends on ``(seed, first_index + n)`` alone: neither on the other
    sequences nor on padding.

    Args:
        sequences: ``[N, L]`` tokens without MASK; ``pad`` is allowed after the end and never masked.
        first_index: index of the first sequence, for a part of a larger set.

    Returns:
        Tokens ``[N, L]`` and the drawn mask ratios ``t`` ``[N]`` (float64).

    Raises:
        ValueError: when a sequence holds MASK already or is shorter than ``min_masked``.
    """
    if (sequences == mask).any():
        raise ValueError("a sequence holds MASK already: give complete sequences")
    real = torch.ones_like(sequences, dtype=torch.bool) if pad is None else sequences != pad
    short = (real.sum(1) < min_masked).nonzero().flatten().tolist()
    if short:
        raise ValueError(f"sequence {short[0]} has fewer than min_masked={min_masked} positions: leave it out")

    index = torch.arange(first_index, first_index + len(sequences), device=sequences.device)
    position = torch.arange(sequences.shape[1], device=sequences.device)
    ratio = uniform(seed, index, torch.zeros_like(index))
    level = uniform(seed, index[:, None], position[None] + 1)  # counter 0 is the ratio's
    level = level.masked_fill(~real, 2.0)  # above every ratio, and last in rank
    rank = level.argsort(dim=1, stable=True).argsort(dim=1)
    masked = (level < ratio[:, None]) | (rank < min_masked)
    return sequences.masked_fill(masked, mask), ratio


def visited_states(
    start: Tensor, commits: Mapping[str, Tensor], mask: int, seed: int, *, min_masked: int = 2
) -> Tensor:
    """One state [L] that each decoding passed through, drawn evenly among those with enough masked positions.

    A head trained on randomly masked sequences meets other contexts when it guides a decoder; these are the decoder's
    own. For decoders that do not mask again.

    Args:
        start: states [N, L] that decoding began with.
        commits: the ``commits`` of a trace (:class:`maskmi.decoding.Trace`).
        seed: with the index of a sequence it decides which of its states.

    Raises:
        ValueError: where a sequence began with fewer than ``min_masked`` masked positions.
    """
    short = ((start == mask).sum(1) < min_masked).nonzero().flatten().tolist()
    if short:
        raise ValueError(f"sequence {short[0]} began with fewer than {min_masked} masked positions: leave it out")
    sequence, step, position = commits["sequence"], commits["step"], commits["position"]
    when = torch.full(start.shape, -1)  # step of each commitment
    when[sequence, position] = step
    last = when.sort(dim=1, descending=True).values[:, min_masked - 1]  # step before which that many are still masked
    chosen = (uniform(seed, torch.arange(len(start))) * (last + 1)).long()
    known = (when >= 0) & (when < chosen[:, None])
    values = torch.zeros_like(start)
    values[sequence, position] = commits["value"]
    return torch.where(known, values, start)


def row_subset(tokens: Tensor, mask: int, rows: int, seed: int) -> Tensor:
    """``rows`` masked positions of each context [N, L], or all where there are fewer, drawn at random: bool [N, L].

    For probing these alone (:func:`maskmi.probing.probe`): a head learns from the pairs of a probed position with every
    masked one, so that the same number of passes covers more contexts.
    """
    masked = tokens == mask
    level = uniform(seed, torch.arange(len(tokens))[:, None], torch.arange(tokens.shape[1])).masked_fill(~masked, 2.0)
    return masked & (level.argsort(1).argsort(1) < rows)
