"""What generated sequences are worth: divergence from natural ones, pseudo-perplexity, variety, novelty (spec, 5)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from maskmi.metrics import bootstrap_interval
from maskmi.model import MaskedModel
from maskmi.protein.adapter import MASK
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


def judged(model: MaskedModel, samples: Tensor, n_scored: int = 100) -> dict[str, Tensor]:
    """What is kept of generated sequences [N, L], for :func:`sample_metrics`.

    ``tokens``; ``hidden``, the mean hidden states [N, D], a pass a sequence; ``log_pseudo_perplexity`` [N], in nats a
    residue, of the first ``n_scored`` sequences, a pass a residue, and NaN for the others.
    """
    scores = torch.full((len(samples),), torch.nan, dtype=torch.float64)
    if n_scored:
        scores[:n_scored] = pseudo_perplexity(model, samples[:n_scored]).value.log()
    return {
        "tokens": samples,
        "hidden": torch.from_numpy(mean_hidden(model, samples)),
        "log_pseudo_perplexity": scores,
    }


def recovered(model: MaskedModel, filled: Tensor, states: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """What is kept of sequences [N, L] that were filled in from ``states``, beside the natural ``truth`` [N, L].

    ``recovery`` [N], the share of masked positions that got the natural residue, and ``log_pseudo_perplexity`` [N], in
    nats a residue; takes a pass a residue.
    """
    masked = states == MASK
    return {
        "recovery": ((filled == truth) & masked).sum(1).double() / masked.sum(1),
        "log_pseudo_perplexity": pseudo_perplexity(model, filled).value.log(),
    }


def divergences(outcome: Mapping[str, Tensor], reference: Reference, seed: int = 0) -> dict[str, dict[str, float]]:
    """Jensen-Shannon divergences (nats) of samples, as :func:`judged` keeps them, from a reference, with intervals.

    ``jsd_1mer``, ``jsd_2mer``, ``jsd_3mer``, and ``jsd_hidden``, of a histogram over the first two principal components
    of the reference's mean hidden states.
    """
    counts = {**_kmers(outcome["tokens"]), "jsd_hidden": reference.histogram.counts(outcome["hidden"].numpy())}
    return {name: divergence(counts[name], reference.counts[name], seed)._asdict() for name in counts}


def floors(reference: Reference, sample_size: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Divergences between disjoint parts of the reference, ``sample_size`` sequences against the rest, as above."""
    rest = len(reference.tokens) - sample_size
    return {name: natural_floor(counts, sample_size, rest, seed)._asdict() for name, counts in reference.counts.items()}


def sample_metrics(
    outcome: Mapping[str, Tensor], reference: Reference, known: Tensor, *, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Metrics of samples, as :func:`judged` keeps them, for a decoding row: each ``{"value", "low", "high"}``.

    The divergences; ``log_pseudo_perplexity`` (mean, in nats a residue); ``identity``, to the nearest of ``known``
    sequences [K, L] (1: nothing new); ``distance``, mean of pairs of samples; ``low_complexity``, share with a run of
    five residues or more. Distances have no interval: pairs share samples.
    """
    samples, scores = outcome["tokens"], outcome["log_pseudo_perplexity"].numpy()
    scores = scores[np.isfinite(scores)]
    identity, _ = nearest_identity(samples, known)
    distance = diversity(samples)["mean_distance"]
    metrics = divergences(outcome, reference, seed)
    if len(scores):
        metrics["log_pseudo_perplexity"] = bootstrap_interval(scores, seed=seed)._asdict()
    return {
        **metrics,
        "identity": bootstrap_interval(identity, seed=seed)._asdict(),
        "distance": {"value": distance, "low": distance, "high": distance},
        "low_complexity": low_complexity(samples)._asdict(),
    }
