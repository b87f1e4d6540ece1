"""What a head is told of two residues without looking at them: how far apart they are along the chain."""

import torch
from torch import Tensor

#: First separation of each class: 1, 2, 3, 4 residues (a turn of a helix), then wider and wider bins.
STARTS = (1, 2, 3, 4, 5, 7, 10, 15, 25, 50)


def separation_classes(length: int) -> Tensor:
    """Class [L, L] (int64) of the separation ``|i - j|``: an index into :data:`STARTS`, and -1 on the diagonal."""
    position = torch.arange(length)
    apart = (position[:, None] - position).abs()
    return torch.bucketize(apart, torch.tensor(STARTS), right=True) - 1


def relations(length: int) -> Tensor:
    """The classes as flags, bool [L, L, 10], for :class:`maskmi.head.PairHead`; all false on the diagonal."""
    return separation_classes(length)[:, :, None] == torch.arange(len(STARTS))
