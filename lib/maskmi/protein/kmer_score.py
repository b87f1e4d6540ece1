"""What samples are worth in the arena: nearness to natural sequences by k-mers, variety, validity of antibodies."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from maskmi.metrics import Interval
from maskmi.protein.antibodies import are_heavy_domains
from maskmi.protein.divergence import divergence, divergence_difference, kmer_counts
from maskmi.protein.fasta import to_sequences
from maskmi.protein.variety import diversity
from maskmi.study import Results


@dataclass(frozen=True)
class KmerScore:
    """Minus the Jensen-Shannon divergence (nats) of samples' k-mers from natural ones: the larger, the nearer.

    It is a :class:`maskmi.arena.SetScore`. Compare sets of one size: smaller ones are further from anything, natural
    ones too (:func:`maskmi.protein.divergence.natural_floor`).
    """

    k: int
    reference: csr_matrix  # k-mers of natural sequences, of kmer_counts
    n_resamples: int = 400  # of the bootstrap over sequences
    seed: int = 0

    @classmethod
    def of(cls, natural: Tensor, k: int) -> "KmerScore":
        """The score against natural sequences [M, L]."""
        return cls(k, kmer_counts(natural, k))

    def interval(self, outcome: Mapping[str, Tensor]) -> Interval:
        found = divergence(kmer_counts(outcome["tokens"], self.k), self.reference, self.seed, self.n_resamples)
        return Interval(-found.value, -found.high, -found.low)

    def difference(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Interval:
        """Of the first sequences, as many as both have, which are taken as pairs."""
        n = min(len(outcome["tokens"]) for outcome in (one, other))
        first, second = (kmer_counts(outcome["tokens"][:n], self.k) for outcome in (other, one))
        return divergence_difference(first, second, self.reference, self.seed, self.n_resamples)


def with_validity(results: Results) -> Results:
    """Results whose outcomes also hold ``valid`` bool [N]: which samples are heavy variable domains of antibodies."""
    return [
        (settings, outcome | {"valid": torch.from_numpy(are_heavy_domains(to_sequences(outcome["tokens"])))})
        for settings, outcome in results
    ]


def varieties(results: Results) -> list[float]:
    """Mean distance of two samples (1 less their identity) of each outcome; samples of one size can be compared."""
    return [diversity(outcome["tokens"])["mean_distance"] for _, outcome in results]
