"""Do scores of residue pairs find the contacts of the folded protein? (Spec of the study, section 5.)

The MI map of a whole protein is made of many contexts, for MI is defined between masked positions only:
:func:`covering_contexts` masks every pair together, :func:`probed_maps` probes and :func:`mean_map` averages.
"""

import itertools
from collections.abc import Mapping, Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from maskmi.metrics import Interval, bootstrap_interval
from maskmi.model import MaskedModel, mask_token
from maskmi.noise import uniform
from maskmi.probing import average_product_correction, probe, symmetrise

CUTOFF = 8.0  # angstrom between C-beta atoms
SEPARATION = 6  # residues along the chain; nearer pairs are in contact whatever the fold
FRACTIONS = {"L": 1, "L/2": 2, "L/5": 5}


# Scoring.


def contact_map(coordinates: ArrayLike, cutoff: float = CUTOFF) -> tuple[Tensor, Tensor]:
    """Contacts [L, L], closer than ``cutoff``, and which pairs are known, both bool, from positions [L, 3] in angstrom.

    A pair with an unresolved residue (NaN) is neither known nor a contact.
    """
    places = torch.as_tensor(coordinates, dtype=torch.float64)
    if places.ndim != 2 or places.shape[1] != 3:
        raise ValueError(f"coordinates must be [L, 3], not {list(places.shape)}")
    resolved = ~places.isnan().any(1)
    distances = (places[:, None] - places[None]).norm(dim=-1)
    return distances < cutoff, resolved[:, None] & resolved[None]


def contact_precision(
    scores: Tensor, coordinates: ArrayLike, *, cutoff: float = CUTOFF, separation: int = SEPARATION
) -> dict[str, float]:
    """Share of contacts among the L, L/2 and L/5 pairs of highest score, and ``chance``: among all pairs counted.

    Pairs ``i < j`` count if ``j - i >= separation`` and both residues are resolved. L is the length of the sequence;
    L/2 and L/5 are rounded down. Among equal scores at the cut all choices are averaged, so that no order matters.

    Args:
        scores: symmetric [L, L]; finite at pairs that count.
        coordinates: C-beta positions [L, 3] in angstrom, NaN where unresolved.

    Raises:
        ValueError: for sizes that differ, scores that aren't symmetric or are missing, or fewer than L pairs.
    """
    scores = torch.as_tensor(scores).detach().cpu().double()
    contacts, known = contact_map(coordinates, cutoff)
    length = len(contacts)
    if scores.shape != contacts.shape:
        raise ValueError(f"scores {list(scores.shape)} don't fit a structure of {length} residues: give [L, L] of it")
    if not torch.allclose(scores, scores.T, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise ValueError("the scores are not symmetric: take the mean of both directions first")
    i, j = known.triu(separation).nonzero(as_tuple=True)
    if len(i) < length:
        raise ValueError(f"only {len(i)} pairs are {separation} or more residues apart, fewer than L = {length}")
    scores, contacts = scores[i, j], contacts[i, j].double()
    if not scores.isfinite().all():
        number = int((~scores.isfinite()).sum())
        raise ValueError(f"{number} of {len(scores)} pairs have no finite score: use contexts that mask every pair")
    result = {"chance": contacts.mean().item()}
    for name, divisor in FRACTIONS.items():
        number = max(1, length // divisor)
        lowest = scores.topk(number).values[-1]
        above, tied = scores > lowest, scores == lowest
        hits = contacts[above].sum() + (number - above.sum()) * contacts[tied].mean()
        result[name] = (hits / number).item()
    return result


def precision_intervals(
    precisions: Sequence[Mapping[str, float]], seed: int = 0, n_resamples: int = 2000
) -> dict[str, Interval]:
    """Mean of each entry of :func:`contact_precision` over structures, with a bootstrap interval over the structures.

    Structures should not be relatives of one another: the bootstrap takes them as independent.
    """
    return {
        name: bootstrap_interval([one[name] for one in precisions], seed=seed, n_resamples=n_resamples)
        for name in ("chance", *FRACTIONS)
    }


# Scores.


def distance_scores(length: int) -> Tensor:
    """The baseline that knows the chain alone: ``-|i - j|``, float64 [L, L]."""
    position = torch.arange(length, dtype=torch.float64)
    return -(position[:, None] - position[None]).abs()


@torch.no_grad()
def attention_scores(model: MaskedModel, tokens: Tensor, batch_size: int = 32) -> Tensor:
    """Last-layer attention [L, L], mean over heads and contexts [C, L], symmetrised, average-product corrected."""
    maps = [
        model(part.to(model.device), attention=True).attention[:, -1].double().mean(1).sum(0)
        for part in tokens.long().split(batch_size)
    ]
    mean = torch.stack(maps).sum(0) / len(tokens)
    return average_product_correction((mean + mean.T) / 2).cpu()


def covering_contexts(sequence: Tensor, mask: int, *, share: float = 0.5, rounds: int = 1, seed: int = 0) -> Tensor:
    """Contexts [C, L] of one complete sequence [L] that mask each pair of positions together at least ``rounds`` times.

    A round deals the positions at random into ``b = round(2 / share)`` blocks of like size and masks each pair of
    blocks: ``b (b - 1) / 2`` contexts, each with about ``2 / b`` of the positions masked. Two positions are masked
    together once in a round, or ``b - 1`` times if they share a block.

    Raises:
        ValueError: for a sequence that isn't complete, or blocks that would be empty.
    """
    if sequence.ndim != 1 or (sequence >= mask).any() or (sequence < 0).any():
        raise ValueError("the sequence must be [L] values alone, without MASK, padding or ambiguous letters")
    if not 0 < share <= 1 or rounds < 1:
        raise ValueError("share must lie in (0, 1], and rounds be at least 1")
    length, blocks = len(sequence), max(2, round(2 / share))
    if length < blocks:
        raise ValueError(f"{length} positions can't be dealt into {blocks} blocks: mask a larger share")
    level = uniform(seed, torch.arange(rounds)[:, None], torch.arange(length)[None])
    block = level.argsort(dim=1).argsort(dim=1) * blocks // length  # [rounds, L]
    pairs = torch.tensor(list(itertools.combinations(range(blocks), 2)))
    masked = (block[:, None, :, None] == pairs[None, :, None, :]).any(-1).flatten(0, 1).to(sequence.device)
    return sequence.expand(len(masked), -1).masked_fill(masked, mask)


def mean_map(matrices: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [L, L] of the matrices [C, L, L] of several contexts, each pair over those where it is known; and counts.

    The mean is float64, NaN where no context knows the pair, and zero on the diagonal.

    Args:
        known: bool; the masked positions [C, L] (a pair is known where both are masked) or pairs [C, L, L]. What the
            matrices hold elsewhere isn't read; NaN at a known pair is taken for a pair that was not measured.

    Raises:
        ValueError: for shapes that don't fit, or an infinite entry.
    """
    if known.dtype != torch.bool or matrices.ndim != 3 or known.shape not in (matrices.shape, matrices.shape[:2]):
        raise ValueError(f"matrices [C, L, L] need known as bool [C, L] or [C, L, L], not {list(known.shape)}")
    if known.ndim == 2:
        known = known[:, :, None] & known[:, None, :]
    known = known & ~matrices.isnan()
    matrices = matrices.double().where(known, 0)
    if matrices.isinf().any():
        raise ValueError("a known pair has an infinite entry: a mean would be infinite too")
    counts = known.sum(0)
    return (matrices.sum(0) / counts).fill_diagonal_(0), counts


def probed_maps(model: MaskedModel, contexts: Tensor, **options) -> tuple[dict[str, Tensor], int]:
    """Maps [L, L] of one protein, averaged over ``contexts`` [C, L], and the passes that they took together.

    ``entropy_drop``, ``mixture`` and ``tv`` (mean of both directions) come without :func:`average_product_correction`,
    ``jacobian``, the categorical Jacobian, with it, within each context. NaN where no context masks both positions.

    Args:
        options: of :func:`maskmi.probing.probe`, such as ``batch_size``.
    """
    if contexts.ndim != 2 or not (contexts == mask_token(model)).any():
        raise ValueError("contexts must be [C, L] with masked positions: MI is defined between these")
    probes = probe(model, contexts, jacobian=True, **options)
    directed = {name: getattr(probes, name) for name in ("entropy_drop", "mixture", "tv")}
    maps = {name: mean_map(*symmetrise(matrix, probes.probed, probes.masked))[0] for name, matrix in directed.items()}
    maps["jacobian"] = mean_map(probes.jacobian, probes.masked)[0]
    return maps, int(probes.passes.sum())
