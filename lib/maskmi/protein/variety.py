"""How varied and how new generated sequences are. Sets of sequences are tokens [N, L], padded after the end."""

import numpy as np
import torch
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from maskmi.metrics import Interval, wilson_interval
from maskmi.protein.adapter import PADDING, complete

CELLS = 4_000_000  # entries of a batch of identities


def nearest_identity(samples: Tensor, training: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Identity of each sample to the nearest training sequence, and that one's index (the first of equals), both [N].

    Identity is ``1 - d / max(lengths)`` with the Levenshtein distance ``d``: the least number of substitutions,
    insertions and deletions. Unrelated proteins have some 0.2 to 0.3.
    """
    samples, training = _strings(samples), _strings(training)
    best = []
    for start in range(0, len(samples), max(1, CELLS // len(training))):
        part = samples[start : start + max(1, CELLS // len(training))]
        identities = _identities(part, training)
        index = identities.argmax(1)
        best.append((identities[np.arange(len(part)), index], index))
    identity, index = (np.concatenate(x) for x in zip(*best, strict=True))
    return identity.astype(np.float64), index


def diversity(tokens: Tensor, prefix: int = 8) -> dict[str, float | int]:
    """How varied a set of at least two sequences is.

    Returns:
        ``mean_distance`` of all pairs (1 - identity, see :func:`nearest_identity`), the number of ``distinct``
        sequences, and ``prefix_share``, the share that starts with the most common ``prefix`` residues.
    """
    strings = _strings(tokens)
    if len(strings) < 2:
        raise ValueError("diversity is about pairs: give at least two sequences")
    number = len(strings)
    similar = sum(
        float(_identities(strings[start : start + 256], strings).sum(dtype=np.float64))
        for start in range(0, number, 256)
    )
    _, starts = np.unique([string[:prefix] for string in strings], return_counts=True)
    return {
        "mean_distance": 1 - (similar - number) / (number * (number - 1)),  # each sequence is identical to itself
        "distinct": len(set(strings)),
        "prefix_share": float(starts.max() / number),
    }


def clusters(tokens: Tensor, identity: float = 0.6) -> np.ndarray:
    """The cluster of each sequence, int64 [N], counted from 0 in the order of their first members.

    Greedy, as in CD-HIT (Li and Godzik 2006): a sequence joins the first cluster whose first member shares at least
    ``identity`` with it (see :func:`nearest_identity`), else it begins a new one. At 0.6 heavy chains of one family of
    V genes (IGHV1 … IGHV6) mostly fall together: natural ones of one family share 0.72 in the median, others 0.49. The
    number of clusters grows with that of sequences: compare sets of one size.
    """
    strings = _strings(tokens)
    label, first = np.empty(len(strings), dtype=np.int64), []
    for i, string in enumerate(strings):
        shared = _identities([string], [strings[k] for k in first])[0] if first else np.empty(0)
        near = np.flatnonzero(shared >= identity - 1e-6)  # they are float32
        label[i] = near[0] if len(near) else len(first)
        if not len(near):
            first.append(i)
    return label


def longest_runs(tokens: Tensor) -> Tensor:
    """Length of the longest run of one residue in each sequence, int64 [N]."""
    tokens = complete(tokens)
    place = torch.arange(tokens.shape[1], device=tokens.device)
    begins = torch.ones_like(tokens, dtype=torch.bool)
    begins[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
    run = place - torch.where(begins, place, 0).cummax(1).values + 1
    return run.masked_fill(tokens == PADDING, 0).amax(1)


def low_complexity(tokens: Tensor, run: int = 5) -> Interval:
    """Share of sequences with a run of ``run`` or more of one residue, with its Wilson interval."""
    return wilson_interval(int((longest_runs(tokens) >= run).sum()), len(tokens))


def _strings(tokens: Tensor) -> list[str]:
    """Each sequence as a string: a character a token, padding left out."""
    tokens = complete(tokens).numpy()
    codes = np.where(tokens == PADDING, 0, tokens + ord("A")).astype(np.uint8)
    return np.ascontiguousarray(codes).view(f"S{codes.shape[1]}")[:, 0].astype(str).tolist()


def _identities(first: list[str], second: list[str]) -> np.ndarray:
    return process.cdist(first, second, scorer=Levenshtein.normalized_similarity, dtype=np.float32, workers=-1)
