"""Vectorised choices among masked positions: ranking with fixed ties, prefixes, the first k, independent sets."""

import torch
from torch import Tensor


def rising(key: Tensor, masked: Tensor) -> Tensor:
    """Positions ``[B, L]`` of each row by rising ``key [B, L]``, the masked ones first.

    Equal keys keep the order of their positions, so the result never depends on the batch.
    """
    key = key.clamp(max=torch.finfo(key.dtype).max)  # an infinite key still ranks before a visible position
    return key.masked_fill(~masked, torch.inf).sort(dim=1, stable=True).indices


def leading(fits: Tensor) -> Tensor:
    """``fits [B, L]`` up to each row's first False, nothing after it."""
    return fits.long().cumprod(1).bool()


def at_positions(order: Tensor, chosen: Tensor) -> Tensor:
    """Turn ``chosen [B, L]``, indexed by rank in ``order [B, L]``, into a mask over positions."""
    return torch.zeros_like(chosen).scatter(1, order, chosen)


def first(key: Tensor, masked: Tensor, count: int | Tensor) -> Tensor:
    """Mask ``[B, L]`` of the ``count`` (one for all, or ``[B]``) masked positions of least key, or all."""
    order = rising(key, masked)
    rank = torch.arange(key.shape[1], device=key.device).expand_as(key)
    limit = count[:, None] if isinstance(count, Tensor) else count
    return at_positions(order, rank < limit) & masked


def independent_set(key: Tensor, candidates: Tensor, edges: Tensor) -> Tensor:
    """A maximal set ``[B, L]`` of ``candidates [B, L]`` without an edge among them, greedily by falling ``key [B, L]``.

    ``edges [B, L, L]``: bool, symmetric. Equal keys: the lower position first.
    """
    rows = torch.arange(len(key), device=key.device)
    open_, taken = candidates, torch.zeros_like(candidates)
    while (going := open_.any(1)).any():
        best = key.masked_fill(~open_, -torch.inf).argmax(1)
        taken[rows, best] |= going
        open_ = open_ & ~taken & ~edges[rows, best]
    return taken
