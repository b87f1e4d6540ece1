"""What a trained head has to beat: other predictions of the MI of masked pairs (spec of the study, section 3).

Each baseline is fitted on the pairs of training contexts and predicts those of held-out ones. Pairs are those of
:func:`pair_index`; features of a pair are symmetric.
"""

import numpy as np
import torch
from sklearn.linear_model import LinearRegression
from torch import Tensor

from maskmi.model import MaskedModel


def pair_index(known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The known pairs ``i < j`` of [N, L, L] as indices ``(n, i, j)``, each [P]."""
    return known.triu(1).nonzero(as_tuple=True)


def at_pairs(matrices: Tensor, known: Tensor) -> np.ndarray:
    """Values [P] (or [P, F] of [N, L, L, F]) at the known pairs."""
    return matrices[pair_index(known)].double().cpu().numpy()


@torch.no_grad()
def attention_features(model: MaskedModel, tokens: Tensor, known: Tensor, batch_size: int = 32) -> np.ndarray:
    """Symmetrised attention [P, layers, heads] of contexts ``tokens`` [N, L] at the known pairs of [N, L, L]."""
    features = []
    for part, open_ in zip(tokens.split(batch_size), known.split(batch_size), strict=True):
        attention = model(part.long(), attention=True).attention.float()
        context, i, j = pair_index(open_)
        features.append((attention[context, :, :, i, j] + attention[context, :, :, j, i]) / 2)
    return torch.cat(features).double().cpu().numpy()


def mean_by_relation(train: tuple[np.ndarray, Tensor], held_out: Tensor, relations: Tensor) -> np.ndarray:
    """Mean label of the training pairs with the same relation (flags, or distance); the overall mean if there is none.

    Args:
        train: labels [P] and known [N, L, L] of the training contexts.
        held_out: known pairs [M, L, L] to predict at.
        relations: integer class of each pair [L, L].
    """
    labels, known = train
    kind = relations[pair_index(known)[1:]].numpy()
    sums, counts = np.bincount(kind, labels), np.bincount(kind)
    means = np.divide(sums, counts, out=np.full(len(sums), labels.mean()), where=counts > 0)
    wanted = relations[pair_index(held_out)[1:]].numpy()
    return np.where(wanted < len(means), means[np.minimum(wanted, len(means) - 1)], labels.mean())


def regression(features: np.ndarray, labels: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Least-squares regression on pair features [P, F], predicted at ``held_out`` [Q, F]."""
    return LinearRegression().fit(features, labels).predict(held_out)


def relation_classes(flags: Tensor) -> Tensor:
    """Integer class [L, L] of boolean flags [L, L, F]: each combination is its own class."""
    return (flags.long() << torch.arange(flags.shape[-1])).sum(-1)
