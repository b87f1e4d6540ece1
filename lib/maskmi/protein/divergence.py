"""How far generated sequences are from natural ones (spec of the study, section 5).

Sets of sequences are tokens [N, L], padded with ``PADDING`` after the end. A divergence compares two sets by counts
[N, F] of features in each sequence: k-mers (:func:`kmer_counts`) or the cell of a histogram (:class:`HiddenHistogram`).

Jensen-Shannon divergences are in **nats**, so at most log 2 = 0.693; divide by log 2 for bits, where the bound is 1.
Their square root is the Jensen-Shannon distance, which :func:`scipy.spatial.distance.jensenshannon` returns. A finite
sample diverges even from its own source, the more the smaller it is: read each value beside :func:`natural_floor`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.special import entr
from sklearn.decomposition import PCA
from torch import Tensor

from maskmi.metrics import Interval
from maskmi.model import MaskedModel, mask_token, pad_token
from maskmi.protein.adapter import MASK, complete

CELLS = 4_000_000  # entries of the arrays of a batch of resamples


# Features.


def kmer_counts(tokens: Tensor, k: int) -> csr_matrix:
    """How often each k-mer occurs in each sequence [N, 20**k]; AA…A is the first, its last residue changes first.

    K-mers lie within a sequence, and those with a letter beyond the twenty amino acids are left out.

    Raises:
        ValueError: for tokens that are not complete sequences, or if none has a k-mer.
    """
    tokens = complete(tokens).cpu().numpy()
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
    tokens = complete(tokens, mask_token(model), pad_token(model))
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


# Parts.


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
