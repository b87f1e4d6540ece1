"""What generated sequences are worth: divergence from natural ones, pseudo-perplexity, variety, novelty (spec, 5)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from maskmi.metrics import bootstrap_interval
from maskmi.model import MaskedModel
from maskmi.protein.divergence import (
    HiddenHistogram,
    divergence,
    diversity,
    kmer_counts,
    low_complexity,
    mean_hidden,
    natural_floor,
    nearest_identity,
    pseudo_perplexity,
)

KMERS = (1, 2, 3)


@dataclass(frozen=True)
class Reference:
    """Sequences to compare with, and their features under one model."""

    tokens: Tensor  # [M, L]
    counts: dict[str, csr_matrix]  # of jsd_1mer, jsd_2mer, jsd_3mer, jsd_hidden
    histogram: HiddenHistogram


def reference_of(model: MaskedModel, tokens: Tensor) -> Reference:
    """The features of reference sequences [M, L]; takes a pass a sequence."""
    hidden = mean_hidden(model, tokens)
    histogram = HiddenHistogram.fit(hidden)
    return Reference(tokens, {**_kmers(tokens), "jsd_hidden": histogram.counts(hidden)}, histogram)


def _kmers(tokens: Tensor) -> dict[str, csr_matrix]:
    return {f"jsd_{k}mer": kmer_counts(tokens, k) for k in KMERS}


def divergences(
    model: MaskedModel, samples: Tensor, reference: Reference, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Jensen-Shannon divergences (nats) of samples [N, L] from a reference, each with its interval.

    ``jsd_1mer``, ``jsd_2mer``, ``jsd_3mer``, and ``jsd_hidden``, of a histogram over the first two principal components
    of the reference's mean hidden states. Takes a pass a sequence.
    """
    counts = {**_kmers(samples), "jsd_hidden": reference.histogram.counts(mean_hidden(model, samples))}
    return {name: divergence(counts[name], reference.counts[name], seed)._asdict() for name in counts}


def floors(reference: Reference, sample_size: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Divergences between disjoint parts of the reference, ``sample_size`` sequences against the rest, as above."""
    rest = len(reference.tokens) - sample_size
    return {name: natural_floor(counts, sample_size, rest, seed)._asdict() for name, counts in reference.counts.items()}


def sample_metrics(
    model: MaskedModel,
    samples: Tensor,
    reference: Reference,
    known: Tensor,
    *,
    n_scored: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
    """Metrics of samples [N, L] for a decoding row, each ``{"value", "low", "high"}``.

    The divergences; ``log_pseudo_perplexity`` (mean over the first ``n_scored`` samples of its logarithm, nats a
    residue); ``identity``, to the nearest of ``known`` sequences (1: nothing new); ``distance``, mean of pairs of
    samples; ``low_complexity``, share with a run of five residues or more. Distances have no interval: pairs share
    samples.
    """
    scored = pseudo_perplexity(model, samples[:n_scored]).value.log().numpy()
    identity, _ = nearest_identity(samples, known)
    distance = diversity(samples)["mean_distance"]
    return {
        **divergences(model, samples, reference, seed),
        "log_pseudo_perplexity": bootstrap_interval(scored[np.isfinite(scored)], seed=seed)._asdict(),
        "identity": bootstrap_interval(identity, seed=seed)._asdict(),
        "distance": {"value": distance, "low": distance, "high": distance},
        "low_complexity": low_complexity(samples)._asdict(),
    }
