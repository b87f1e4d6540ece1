"""The protein studies: their backbones, sequences to probe and to compare with, and states to generate from.

Three studies run the same steps (:mod:`maskmi.study`): ``esmc_small``, a small ESM-C trained here on Swiss-Prot;
``antiberty``, the published AntiBERTy; and ``esmc_300m``, the paper's backbone, whose weights a user brings.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskmi.artefacts import Artefacts, load_checkpoint, sha256
from maskmi.contexts import random_contexts, visited_states
from maskmi.decoding import Sequential, decode
from maskmi.noise import uniform
from maskmi.parallel import InThreads
from maskmi.precision import find_dtype
from maskmi.protein.adapter import MASK, PADDING, ByLength, encode, lengths
from maskmi.protein.antiberty import SHA256 as ANTIBERTY_SHA256
from maskmi.protein.antiberty import load_antiberty
from maskmi.protein.antibodies import loops
from maskmi.protein.data import Antibody, load_antibodies, load_proteins
from maskmi.protein.esmc import SHA256 as ESMC_300M_SHA256
from maskmi.protein.esmc import Layout, find_esmc_300m, load_esmc_300m, load_esmc_small
from maskmi.protein.evaluation import judged, recovered
from maskmi.protein.fasta import to_sequences
from maskmi.protein.relations import relations
from maskmi.settings import Setting
from maskmi.study import Backbone, Results, checkpoint_path, run_sweep

STUDIES = ("esmc_small", "antiberty", "esmc_300m")
HEAD_WIDTH = {"esmc_small": 128, "antiberty": 256, "esmc_300m": 384}  # the last gives 818,305 parameters
LENGTHS = (50, 100)  # residues of what is generated from nothing (paper)
HEAVY_END = "TVSS"  # of heavy chains
INFILLING = ("infilling", "CDR infilling")  # test sets, the second of antibodies alone
CONTEXT_SEEDS = {"train": 4_000_001, "held_out": 4_000_002}
#: Natural proteins by what they are for: contexts to probe, and generated sequences to be compared with.
SPLITS = {"train": "train", "held_out": "validation", "reference": "test"}


def load_backbone(
    study: str,
    *,
    checkpoint: str | Path = "shipped",
    artefacts: str | Path | None = None,
    dtype: torch.dtype | str = "auto",
    device: str = "cpu",
) -> Backbone:
    """The study's backbone.

    Args:
        checkpoint: for ``esmc_small`` as in :func:`maskmi.study.checkpoint_path`; for ``esmc_300m`` ``shipped`` is the
            hub's cache, else a download, and anything else the path of a local file or folder; ``antiberty`` comes
            with its package.
        dtype: as in :func:`maskmi.precision.find_dtype`.

    Raises:
        ValueError: for an unknown study or dtype, or a damaged checkpoint.
        FileNotFoundError: where the weights are missing; says what to do.
    """
    how = {"dtype": find_dtype(dtype, device), "device": device}
    if study == "antiberty":
        network, digest, metadata = load_antiberty(**how), ANTIBERTY_SHA256, {"source": "antiberty 0.1.3"}
    elif study == "esmc_300m":
        path = find_esmc_300m(None if checkpoint == "shipped" else checkpoint)
        network, digest, metadata = load_esmc_300m(path, **how), ESMC_300M_SHA256, {"source": path.name}
    elif study == "esmc_small":
        path = checkpoint_path(study, checkpoint, artefacts)
        metadata = load_checkpoint(path, made_by=f"./run_all.sh --profile full --study {study}")[1]
        recipe = metadata.get("recipe", {})
        if not set(Layout._fields) <= set(recipe):
            raise ValueError(f"{path} holds no weights of {study}: they would tell their {', '.join(Layout._fields)}")
        layout = Layout(*(recipe[size] for size in Layout._fields))
        network, digest = load_esmc_small(path, layout=layout, **how), sha256(path)
    else:
        raise ValueError(f"there is no study {study!r}; choose among {', '.join(STUDIES)}")
    network.requires_grad_(False)
    model = ByLength(InThreads(network))
    return Backbone(study, network, model, digest, metadata, relations, HEAD_WIDTH[study], study)


def all_masked(length: Tensor) -> Tensor:
    """States [N, L] of ``length`` [N] masked positions each, padded to the longest."""
    position = torch.arange(int(length.max()))
    return torch.where(position < length[:, None], MASK, PADDING)


def random_lengths(count: int, seed: int, shortest: int = LENGTHS[0], longest: int = LENGTHS[1]) -> Tensor:
    """Lengths [count] drawn evenly from ``shortest … longest``; the first ones are the same whatever the count."""
    return shortest + (uniform(seed, torch.arange(count)) * (longest - shortest + 1)).long()


def natural(study: str, purpose: str) -> Tensor:
    """Natural sequences [N, L] in an order as good as random, for ``train``, ``held_out`` or ``reference``.

    For ESM-C proteins of Swiss-Prot of ``LENGTHS`` residues, no family in two of these. For AntiBERTy complete heavy
    chains of a human repertoire, one of each clone, as ``reference`` only: its contexts are its own samples
    (:func:`contexts`).

    Raises:
        ValueError: for another purpose.
    """
    if study == "antiberty":
        if purpose != "reference":
            raise ValueError(f"natural antibodies are for 'reference' alone, not {purpose!r}: contexts are own samples")
        return encode([antibody.sequence for antibody in _heavy_chains()])
    if purpose not in SPLITS:
        raise ValueError(f"natural sequences are for {', '.join(SPLITS)}, not {purpose!r}")
    return encode([protein.sequence for protein in _shuffled(load_proteins(SPLITS[purpose], *LENGTHS))])


def v_genes() -> list[str]:
    """The V gene, without the allele, of each natural antibody, in the order of :func:`natural`."""
    return [antibody.gene.split("*")[0] for antibody in _heavy_chains()]


def _heavy_chains() -> list[Antibody]:
    return _shuffled(load_antibodies("repertoire", "H", one_per_clone=True))


def _shuffled(found: list) -> list:
    return [found[i] for i in uniform(0, torch.arange(len(found))).argsort().tolist()]


def starting_lengths(study: str, count: int, seed: int) -> Tensor:
    """Lengths [count] of what is generated from nothing: even over ``LENGTHS``, or those of natural heavy chains."""
    if study != "antiberty":
        return random_lengths(count, seed)
    own = lengths(natural(study, "reference"))
    return own[(uniform(seed, torch.arange(count)) * len(own)).long()]


def starting_states(study: str, count: int, seed: int) -> Tensor:
    """What is generated from [count, L]: all masks, but for antibodies the last residues, ``HEAVY_END``.

    AntiBERTy knows light chains and many species too; that end, which every human heavy J gene codes for, asks for a
    heavy chain.
    """
    length = starting_lengths(study, count, seed)
    states = all_masked(length)
    if study == "antiberty":
        place = length[:, None] - len(HEAVY_END) + torch.arange(len(HEAVY_END))
        states.scatter_(1, place, encode([HEAVY_END]).expand(count, -1))
    return states


def own_samples(backbone: Backbone, store: Artefacts, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences [count, L] of the model's own any-order sampler, and a state [count, L] that each passed through.

    From :func:`starting_states`, one residue a pass in random order, at temperature 1. Stored.
    """
    start = starting_states(backbone.name, count, seed)

    def make() -> dict[str, Tensor]:
        run = decode(backbone.model, start, Sequential("random"), seed=seed, temperature=1.0, keep_trace=True)
        return {"samples": run.tokens, "visited": visited_states(start, run.trace.commits, MASK, seed)}

    found = store.get_or_make(
        "own_samples",
        make,
        parameters={"seed": seed},
        inputs=backbone.identity | {"start": start},
        code=["maskmi.contexts", "maskmi.decoding.loop", "maskmi.decoding.sequential"],
    )
    return found["samples"], found["visited"]


def contexts(backbone: Backbone, store: Artefacts, count: int, split: str = "train") -> Tensor:
    """Contexts to probe [count, L], by turns a sequence masked at random and a state that own sampling visited.

    Those masked at random (``t ~ U[0, 1]``, paper) are natural proteins for ESM-C; for AntiBERTy, which has learned
    558 million natural antibodies, its own samples. ``split`` is ``train`` or ``held_out``.

    Raises:
        ValueError: for another split, or more contexts than there are natural proteins for.
    """
    if split not in CONTEXT_SEEDS:
        raise ValueError(f"there is no split {split!r}; choose among {', '.join(CONTEXT_SEEDS)}")
    seed = CONTEXT_SEEDS[split]
    samples, visited = own_samples(backbone, store, count // 2 + count % 2, seed)
    if backbone.name != "antiberty":
        samples = natural(backbone.name, split)[: len(samples)]
        if len(samples) < len(visited):
            raise ValueError(
                f"there are {len(samples)} natural proteins for {split}: ask for {2 * len(samples)} contexts"
            )
    masked = random_contexts(samples, MASK, seed, pad=PADDING)[0]
    width = max(masked.shape[1], visited.shape[1])
    both = [torch.nn.functional.pad(part, (0, width - part.shape[1]), value=PADDING) for part in (masked, visited)]
    return torch.stack(both, 1).flatten(0, 1)[:count]


def generated(
    backbone: Backbone,
    store: Artefacts,
    sweep: Iterable[Setting],
    n_samples: int,
    *,
    n_scored: int = 100,
    seed: int = 0,
    name: str = "unconditional",
    **options: Any,
) -> Results:
    """``(settings, outcome)`` of each decoder of a sweep from all masks at temperature 1; stored.

    An outcome holds what :func:`maskmi.protein.evaluation.judged` keeps of ``n_samples`` sequences.
    """
    states = starting_states(backbone.name, n_samples, seed)
    return run_sweep(
        backbone,
        store,
        sweep,
        states,
        name=name,
        judge=lambda tokens: judged(backbone.model, tokens, n_scored),
        inputs={"states": states, "n_scored": torch.tensor(n_scored)},
        seed=seed,
        temperature=1.0,
        **options,
    )


def slow_samples(
    backbone: Backbone, store: Artefacts, count: int, n_contexts: int, *, seed: int = 0
) -> dict[str, Tensor]:
    """Sequences [N, L] of both sequential decoders with other noise than :func:`generated` has, to compare with.

    ``entropy``: ``count`` of them, by least entropy; ``random``: the own samples that ``n_contexts`` contexts were made
    from (:func:`contexts`), in random order. Stored.
    """
    setting = {"decoder": "sequential", "order": "entropy"}, Sequential("entropy")
    ((_, least),) = generated(backbone, store, [setting], count, n_scored=0, seed=seed + 1, n_joint_error=1)
    random, _ = own_samples(backbone, store, n_contexts // 2 + n_contexts % 2, CONTEXT_SEEDS["train"])
    return {"entropy": least["tokens"], "random": random}


def infilled(
    backbone: Backbone, store: Artefacts, sweep: Iterable[Setting], count: int, *, seed: int = 0, **options: Any
) -> Results:
    """``(settings, outcome)`` of each decoder on ``count`` natural sequences with some of their residues masked.

    A random half (test set ``infilling``); for antibodies also the complementarity-determining regions (``CDR
    infilling``). An outcome holds what :func:`maskmi.protein.evaluation.recovered` keeps. Values are drawn at
    temperature 1; stored.
    """
    truth, sweep = natural(backbone.name, "reference")[:count], list(sweep)
    masked = {INFILLING[0]: half_of(truth, seed)}
    if backbone.name == "antiberty":
        masked[INFILLING[1]] = loops_of(truth)
    return [
        result
        for name, where in masked.items()
        for result in filled_in(backbone, store, sweep, truth, where, name=name, seed=seed, **options)
    ]


def filled_in(
    backbone: Backbone,
    store: Artefacts,
    sweep: Iterable[Setting],
    truth: Tensor,
    where: Tensor,
    *,
    n_scored: int | None = None,
    **options: Any,
) -> Results:
    """``(settings, outcome)`` of each decoder on the sequences ``truth`` [N, L] masked at ``where`` (bool [N, L]).

    ``n_scored`` is that of :func:`maskmi.protein.evaluation.recovered`, the other options are those of
    :func:`maskmi.study.run_sweep`. Values are drawn at temperature 1; stored.
    """
    states = truth.masked_fill(where, MASK)
    scored = {} if n_scored is None else {"n_scored": torch.tensor(n_scored)}
    return run_sweep(
        backbone,
        store,
        sweep,
        states,
        judge=lambda tokens: recovered(backbone.model, tokens, states, truth, n_scored),
        inputs={"states": states, "truth": truth} | scored,
        temperature=1.0,
        **options,
    )


def half_of(truth: Tensor, seed: int) -> Tensor:
    """A random half of the residues of each sequence, rounded down: bool [N, L]."""
    real = truth != PADDING
    level = uniform(seed, torch.arange(len(truth))[:, None], torch.arange(truth.shape[1])).masked_fill(~real, 2.0)
    return level.argsort(1).argsort(1) < (real.sum(1) // 2)[:, None]


def loops_of(truth: Tensor) -> Tensor:
    """The three complementarity-determining regions of each antibody: bool [N, L]."""
    inside = torch.zeros_like(truth, dtype=torch.bool)
    for row, sequence in zip(inside, to_sequences(truth), strict=True):
        row[: len(sequence)] = torch.from_numpy(loops(sequence))
    return inside
