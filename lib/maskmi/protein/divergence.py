"""How far generated sequences are from natural ones, how varied and how new they are (spec of the study, section 5).

Sets of sequences are tokens [N, L], padded with ``PADDING`` after the end. A divergence compares two sets by counts
[N, F] of features in each sequence: k-mers (:func:`kmer_counts`) or the cell of a histogram (:class:`HiddenHistogram`).

Jensen-Shannon divergences are in **nats**, so at most log 2 = 0.693; divide by log 2 for bits, where the bound is 1.
Their square root is the Jensen-Shannon distance, which :func:`scipy.spatial.distance.jensenshannon` returns. A finite
sample diverges even from its own source, the more the smaller it is: read each value beside :func:`natural_floor`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein
from scipy.sparse import csr_matrix
from scipy.special import entr
from sklearn.decomposition import PCA
from torch import Tensor

from maskmi.metrics import Interval, wilson_interval
from maskmi.model import MaskedModel, log_probabilities, mask_token, pad_token
from maskmi.protein.adapter import MASK, PADDING

CELLS = 4_000_000  # entries of the arrays of a batch of resamples, or of a batch of identities


# Features.


def kmer_counts(tokens: Tensor, k: int) -> csr_matrix:
    """How often each k-mer occurs in each sequence [N, 20**k]; AA…A is the first, its last residue changes first.

    K-mers lie within a sequence, and those with a letter beyond the twenty amino acids are left out.

    Raises:
        ValueError: for tokens that are not complete sequences, or if none has a k-mer.
    """
    tokens = _complete(tokens).cpu().numpy()
    if k < 1 or k > tokens.shape[1]:
        raise ValueError(f"there are no {k}-mers in sequences of {tokens.shape[1]} residues: choose a smaller k")
    windows = np.lib.stride_tricks.sliding_window_view(tokens, k, axis=1)
    row, place = (windows < MASK).all(-1).nonzero()
    if not len(row):
        raise ValueError(f"no sequence has a {k}-mer of amino acids: choose a smaller k")
    column = windows[row, place] @ MASK ** np.arange(k - 1, -1, -1)
    return csr_matrix((np.ones(len(row)), (row, column)), shape=(len(tokens), MASK**k))


@torch.no_grad()
def mean_hidden(model: MaskedModel, tokens: Tensor, batch_size: int = 64) -> np.ndarray:
    """Last hidden states, averaged over each sequence's positions: float32 [N, D]. Takes a pass a sequence."""
    tokens = _complete(tokens, mask_token(model), pad_token(model))
    lengths = (tokens != pad_token(model)).sum(1)
    parts, order = [], lengths.argsort(stable=True)  # like lengths share a call, which is cut to the longest
    for place in order.split(batch_size):
        part = tokens[place, : int(lengths[place].max())].to(model.device)
        real = (part != pad_token(model))[:, :, None]
        hidden = model(part).hidden.float().masked_fill(~real, 0)
        parts.append((hidden.sum(1) / real.sum(1)).cpu())
    return torch.cat(parts)[order.argsort()].numpy()


@dataclass(frozen=True)
class HiddenHistogram:
    """Cells of the plane of the first two principal components of a reference set's mean hidden states."""

    components: PCA
    edges: np.ndarray  # inner edges of the bins [2, bins - 1]

    @classmethod
    def fit(cls, reference: np.ndarray, bins: int = 10) -> "HiddenHistogram":
        """Components, and edges that part the ``reference`` [N, D] into equally filled bins along each axis.

        The sign of a component is such that its entry of largest size is positive.
        """
        reference = np.asarray(reference, dtype=np.float64)
        components = PCA(n_components=2, svd_solver="full").fit(reference)
        rows = components.components_
        rows *= np.sign(rows[[0, 1], np.abs(rows).argmax(1)])[:, None]
        inner = np.linspace(0, 1, bins + 1)[1:-1]
        return cls(components, np.quantile(components.transform(reference), inner, axis=0).T)

    def counts(self, hidden: np.ndarray) -> csr_matrix:
        """The cell of each sequence [N, bins²], from ``mean_hidden`` [N, D]; the outermost bins have no outer edge."""
        places = self.components.transform(np.asarray(hidden, dtype=np.float64))
        first, second = (np.searchsorted(edges, place) for edges, place in zip(self.edges, places.T, strict=True))
        bins = self.edges.shape[1] + 1
        each = np.arange(len(places))
        return csr_matrix((np.ones(len(places)), (each, first * bins + second)), shape=(len(places), bins**2))


# Divergences.


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence in nats over the last axis of counts or frequencies, which needn't be normalised."""
    p, q = (np.asarray(x, dtype=np.float64) for x in (p, q))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    return (entr((p + q) / 2).sum(-1) - (entr(p).sum(-1) + entr(q).sum(-1)) / 2).clip(0, np.log(2))


def divergence(samples: csr_matrix, reference: csr_matrix, seed: int = 0, n_resamples: int = 1000) -> Interval:
    """Divergence of the pooled counts of two sets, in nats, with a 95 % bootstrap interval over sequences of both.

    Pooling weights a sequence by its number of features. Resampling repeats sequences, which adds to the divergence
    about as much as finite samples already did. So the percentile bounds are shifted by the mean excess of the
    resamples: the interval shows how far the value itself would scatter at these sample sizes, and is to be compared
    with values and floors at the same sizes. It doesn't correct what all of these have in excess of an infinite sample.
    Where most features are rare it is too wide: in simulations of a few hundred sequences up to 1.3 times for 2-mers,
    1.4 to 2 times for 3-mers.

    Raises:
        ValueError: for sets of different features, or an empty one.
    """
    _same_features(samples, reference)
    samples, reference = (counts[counts.getnnz(1) > 0] for counts in (samples, reference))
    value = float(jensen_shannon(_total(samples), _total(reference)))
    rng = np.random.default_rng(seed)
    resamples = []
    for size in _batches(n_resamples, samples.shape[1] + len(samples.indptr) + len(reference.indptr)):
        resamples.append(jensen_shannon(*(_pooled(x, _weights(rng, x, size)) for x in (samples, reference))))
    low, high = _shifted(np.concatenate(resamples), value)
    return Interval(value, float(min(max(low, 0), value)), float(max(min(high, np.log(2)), value)))


def divergence_difference(
    first: csr_matrix, second: csr_matrix, reference: csr_matrix, seed: int = 0, n_resamples: int = 1000
) -> Interval:
    """Divergence of ``first`` [N, F] from a reference less that of ``second`` [N, F], in nats, with a 95 % interval.

    The bootstrap is paired: row n of both sets was made from one state with the same noise, so both sets are resampled
    alike, and meet the same resample of the reference. Bounds are shifted as in :func:`divergence`, though here most
    of what resampling adds cancels.

    Raises:
        ValueError: as :func:`divergence`, and for sets of different sizes.
    """
    for counts in (first, second):
        _same_features(counts, reference)
    if first.shape[0] != second.shape[0]:
        raise ValueError(f"{first.shape[0]} sequences can't be paired with {second.shape[0]}: take as many of both")
    value = float(np.subtract(*(jensen_shannon(_total(x), _total(reference)) for x in (first, second))))
    rng = np.random.default_rng(seed)
    resamples = []
    for size in _batches(n_resamples, first.shape[1] + len(first.indptr) + len(reference.indptr)):
        weights, natural = _weights(rng, first, size), _pooled(reference, _weights(rng, reference, size))
        resamples.append(np.subtract(*(jensen_shannon(_pooled(x, weights), natural) for x in (first, second))))
    low, high = _shifted(np.concatenate(resamples), value)
    return Interval(value, float(min(low, value)), float(max(high, value)))


def natural_floor(
    natural: csr_matrix, sample_size: int, reference_size: int, seed: int = 0, repeats: int = 200
) -> Interval:
    """Divergence between disjoint random parts of natural sequences, in nats: mean and the range of 95 % of the parts.

    Args:
        natural: counts [N, F].
        sample_size, reference_size: sizes of the two sets that the floor is for.

    Raises:
        ValueError: when there are too few natural sequences.
    """
    number = natural.shape[0]
    if min(sample_size, reference_size) < 1 or sample_size + reference_size > number:
        raise ValueError(f"{number} natural sequences don't hold {sample_size} and {reference_size} others: take fewer")
    rng = np.random.default_rng(seed)
    values = []
    for size in _batches(repeats, natural.shape[1] + number):
        rank = rng.random((size, number)).argsort(1)
        parts = (rank < sample_size, (rank >= sample_size) & (rank < sample_size + reference_size))
        values.append(jensen_shannon(*((natural.T @ part.T.astype(np.float64)).T for part in parts)))
    values = np.concatenate(values)
    return Interval(float(values.mean()), *(float(x) for x in np.quantile(values, [0.025, 0.975])))


# Diversity, novelty, low complexity.


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
    tokens = _complete(tokens)
    place = torch.arange(tokens.shape[1], device=tokens.device)
    begins = torch.ones_like(tokens, dtype=torch.bool)
    begins[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
    run = place - torch.where(begins, place, 0).cummax(1).values + 1
    return run.masked_fill(tokens == PADDING, 0).amax(1)


def low_complexity(tokens: Tensor, run: int = 5) -> Interval:
    """Share of sequences with a run of ``run`` or more of one residue, with its Wilson interval."""
    return wilson_interval(int((longest_runs(tokens) >= run).sum()), len(tokens))


# Pseudo-perplexity.


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
    tokens = _complete(tokens, mask, pad)
    scored = tokens < mask if where is None else (tokens < mask) & where.cpu()
    number = scored.sum(1)
    if (number == 0).any():
        raise ValueError(f"sequence {int((number == 0).int().argmax())} has no residue to score: leave it out")
    lengths = (tokens != pad).sum(1)
    order = lengths.argsort(stable=True)  # as in mean_hidden
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


# Parts.


def _complete(tokens: Tensor, mask: int = MASK, pad: int = PADDING) -> Tensor:
    """``tokens`` as int64 on the processor, after a check that they are sequences without MASK."""
    if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool or not tokens.numel():
        raise ValueError(f"sequences must be integer tokens [N, L], not {tokens.dtype} {list(tokens.shape)}")
    tokens = tokens.long().cpu()
    if (tokens == mask).any() or (tokens < 0).any():
        raise ValueError("a sequence holds MASK or a negative token: give complete sequences")
    if (tokens[:, 0] == pad).any() or ((tokens[:, :-1] == pad) & (tokens[:, 1:] != pad)).any():
        raise ValueError("a sequence is empty or has padding before a residue: padding may only follow the end")
    return tokens


def _strings(tokens: Tensor) -> list[str]:
    """Each sequence as a string: a character a token, padding left out."""
    tokens = _complete(tokens).numpy()
    codes = np.where(tokens == PADDING, 0, tokens + ord("A")).astype(np.uint8)
    return np.ascontiguousarray(codes).view(f"S{codes.shape[1]}")[:, 0].astype(str).tolist()


def _identities(first: list[str], second: list[str]) -> np.ndarray:
    return process.cdist(first, second, scorer=Levenshtein.normalized_similarity, dtype=np.float32, workers=-1)


def _same_features(first: csr_matrix, second: csr_matrix) -> None:
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"the sets have {first.shape[1]} and {second.shape[1]} features: count the same ones in both")
    if not first.sum() or not second.sum():
        raise ValueError("a set is empty: there is nothing to compare")


def _weights(rng: np.random.Generator, counts: csr_matrix, size: int) -> np.ndarray:
    """How often each sequence is in each of ``size`` resamples [size, N]."""
    n = counts.shape[0]
    return rng.multinomial(n, np.full(n, 1 / n), size).astype(np.float64)


def _pooled(counts: csr_matrix, weights: np.ndarray) -> np.ndarray:
    return (counts.T @ weights.T).T


def _shifted(resamples: np.ndarray, value: float) -> np.ndarray:
    """Bounds of 95 % of the resamples, shifted by their mean excess over the value."""
    return np.quantile(resamples, [0.025, 0.975]) - (resamples.mean() - value)


def _total(counts: csr_matrix) -> np.ndarray:
    return np.asarray(counts.sum(0)).ravel()


def _batches(number: int, width: int) -> list[int]:
    """Sizes of batches that make up ``number``, so that arrays of that many rows of ``width`` stay small."""
    size = max(1, CELLS // width)
    return [size] * (number // size) + [number % size] * (number % size > 0)
