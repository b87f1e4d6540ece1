"""What generated sequences are worth: divergence from natural ones, pseudo-perplexity, variety, novelty (spec, 5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from maskmi.metrics import bootstrap_interval, wilson_interval
from maskmi.model import MaskedModel
from maskmi.protein.adapter import MASK
from maskmi.protein.antibodies import are_heavy_domains
from maskmi.protein.divergence import HiddenHistogram, divergence, kmer_counts, mean_hidden, natural_floor
from maskmi.protein.fasta import to_sequences
from maskmi.protein.perplexity import pseudo_perplexity
from maskmi.protein.variety import clusters, diversity, low_complexity, nearest_identity

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


def recovered(
    model: MaskedModel, filled: Tensor, states: Tensor, truth: Tensor, n_scored: int | None = None
) -> dict[str, Tensor]:
    """What is kept of sequences [N, L] that were filled in from ``states``, beside the natural ``truth`` [N, L].

    ``recovery`` [N], the share of masked positions that got the natural residue, and ``log_pseudo_perplexity`` [N] of
    what was filled in, in nats a residue; takes a pass for each such residue. With ``n_scored`` only the first ones
    are scored so, and NaN stands for the others.
    """
    masked = states == MASK
    scores = torch.full((len(filled),), torch.nan, dtype=torch.float64)
    first = slice(len(filled) if n_scored is None else n_scored)
    if len(scores[first]):
        scores[first] = pseudo_perplexity(model, filled[first], where=masked[first]).value.log()
    return {
        "recovery": ((filled == truth) & masked).sum(1).double() / masked.sum(1),
        "log_pseudo_perplexity": scores,
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


def natural_metrics(
    model: MaskedModel, reference: Reference, sample_size: int, *, n_scored: int = 100, seed: int = 0
) -> dict[str, dict[str, float]]:
    """What :func:`sample_metrics` says of natural sequences: the :func:`floors`, ``distance`` and ``clusters`` of the
    first ``sample_size``, and ``log_pseudo_perplexity`` of the first ``n_scored``, a pass a residue."""
    first = reference.tokens[:sample_size]
    metrics = floors(reference, sample_size, seed)
    if n_scored:
        scores = pseudo_perplexity(model, reference.tokens[:n_scored]).value.log().numpy()
        metrics["log_pseudo_perplexity"] = bootstrap_interval(scores, seed=seed)._asdict()
    return metrics | {"distance": _exact(diversity(first)["mean_distance"]), "clusters": _exact(_number(first))}


def sample_metrics(
    outcome: Mapping[str, Tensor],
    reference: Reference,
    known: Tensor,
    *,
    slow: Mapping[str, Tensor] | None = None,
    genes: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Metrics of samples, as :func:`judged` keeps them, for a decoding row: each ``{"value", "low", "high"}``.

    The divergences; ``log_pseudo_perplexity`` (mean, in nats a residue); ``identity``, to the nearest of ``known``
    sequences [K, L] (1: nothing new); ``distance``, mean of pairs of samples; ``clusters``, their number at 60 %
    identity; ``low_complexity``, share with a run of five residues or more. Distances and numbers of clusters have no
    interval: pairs share samples, and resampling repeats sequences.

    Args:
        slow: sequences of slower decoders [N, L], by name: ``jsd_2mer_<name>`` and ``jsd_3mer_<name>`` say how far the
            samples are from these.
        genes: for antibodies, the V gene of each of ``known``: adds ``valid``, the share of heavy variable domains
            (:func:`maskmi.protein.antibodies.are_heavy_domains`), and ``v_genes``, the number of genes that the nearest
            ``known`` chains of these come from.
    """
    samples, scores = outcome["tokens"], outcome["log_pseudo_perplexity"].numpy()
    scores = scores[np.isfinite(scores)]
    identity, nearest = nearest_identity(samples, known)
    metrics = divergences(outcome, reference, seed)
    for name, tokens in (slow or {}).items():
        for k in KMERS[1:]:
            found = divergence(kmer_counts(samples, k), kmer_counts(tokens, k), seed)
            metrics[f"jsd_{k}mer_{name}"] = found._asdict()
    if len(scores):
        metrics["log_pseudo_perplexity"] = bootstrap_interval(scores, seed=seed)._asdict()
    metrics |= {
        "identity": bootstrap_interval(identity, seed=seed)._asdict(),
        "distance": _exact(diversity(samples)["mean_distance"]),
        "clusters": _exact(_number(samples)),
        "low_complexity": low_complexity(samples)._asdict(),
    }
    if genes is not None:
        valid = are_heavy_domains(to_sequences(samples))
        metrics["valid"] = wilson_interval(int(valid.sum()), len(valid))._asdict()
        metrics["v_genes"] = _exact(len({genes[i] for i in nearest[valid].tolist()}))
    return metrics


def _number(tokens: Tensor) -> int:
    return int(clusters(tokens).max()) + 1


def _exact(value: float) -> dict[str, float]:
    return {"value": value, "low": value, "high": value}
