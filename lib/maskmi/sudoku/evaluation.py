"""How good a Sudoku model is: puzzles solved by grade, and the bound on the likelihood of full grids."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from maskmi.metrics import wilson_interval
from maskmi.model import MaskedModel, log_probabilities
from maskmi.sudoku.grading import GRADES
from maskmi.sudoku.mdm import CELLS, MASK


def solved_by_grade(solved: Tensor, grades: np.ndarray) -> pd.DataFrame:
    """Share solved of the puzzles of each grade, in percent with its 95 % interval: grade, value, low, high, n."""
    rows = []
    for k in np.unique(grades):
        outcome = solved.numpy()[grades == k]
        share = wilson_interval(int(outcome.sum()), len(outcome))
        rows.append({"grade": GRADES[k], **{key: 100 * x for key, x in share._asdict().items()}, "n": len(outcome)})
    return pd.DataFrame(rows)


def likelihood_bound(model: MaskedModel, grids: np.ndarray, seed: int) -> np.ndarray:
    """An upper bound [n] on ``-log p(x)`` in nats for full grids [n, 81], estimated in 81 passes each.

    In expectation over masks of k cells, ``-log p(x) <= Σ_k (1/k) Σ_{i masked} -log p_i(x_i)`` for k = 1 … 81
    (arXiv 2406.07524 in continuous time). The masks of a grid are the first k cells of one random order.
    """
    bounds = []
    for index, grid in enumerate(grids):
        order = np.random.default_rng([seed, index]).permutation(CELLS)
        masked = torch.from_numpy(order < np.arange(1, CELLS + 1)[:, None])  # [81, 81], a row for each k
        x = torch.from_numpy(grid.astype(np.int64)).expand(CELLS, -1)
        log_p = log_probabilities(model(x.masked_fill(masked, MASK)).logits)
        surprise = -log_p.gather(-1, x[..., None])[..., 0].double()
        bounds.append((surprise * masked / masked.sum(1, keepdim=True)).sum().item())
    return np.array(bounds)
