"""What the Sudoku study says of MI matrices: which constraints they show."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskmi.baselines import at_pairs
from maskmi.metrics import auroc
from maskmi.sudoku.grid import relations

UNITS = ("row", "column", "box")


def by_relation(matrices: Tensor, known: Tensor) -> dict[str, np.ndarray]:
    """Values of the known pairs of [N, 81, 81] by the one unit that they share, several, or none."""
    flags = torch.as_tensor(relations())
    shared = flags.sum(-1)
    kinds = {name: flags[..., i] & (shared == 1) for i, name in enumerate(UNITS)}
    kinds |= {"several units": shared > 1, "no unit": shared == 0}
    return {name: at_pairs(matrices, known & kind) for name, kind in kinds.items()}


def structure_scores(matrices: Tensor, known: Tensor) -> dict[str, Any]:
    """How well a matrix tells constrained pairs from others.

    ``auroc``: for each unit, pairs that share it against pairs that share none, and ``any`` unit against none.
    ``mass_share``: share of the matrix's positive part that lies on pairs of one unit, and ``pair_share``, their share
    of all pairs.
    """
    flags = torch.as_tensor(relations())
    none = ~flags.any(-1)
    apart = at_pairs(matrices, known & none)
    scores: dict[str, Any] = {"auroc": {}}
    for name, kind in {**{u: flags[..., i] for i, u in enumerate(UNITS)}, "any": flags.any(-1)}.items():
        together = at_pairs(matrices, known & kind)
        labels = np.repeat([True, False], [len(together), len(apart)])
        scores["auroc"][name] = auroc(np.concatenate([together, apart]), labels)
    mass = np.clip(at_pairs(matrices, known & flags.any(-1)), 0, None).sum(), np.clip(apart, 0, None).sum()
    scores["mass_share"] = float(mass[0] / (mass[0] + mass[1]))
    scores["pair_share"] = len(at_pairs(matrices, known & flags.any(-1))) / len(at_pairs(matrices, known))
    return scores
