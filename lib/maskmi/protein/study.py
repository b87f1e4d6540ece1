"""The protein studies: their backbones, sequences to probe and to compare with, and states to generate from.

Three studies run the same steps (:mod:`maskmi.study`): ``esmc_small``, a small ESM-C trained here on Swiss-Prot;
``antiberty``, the published AntiBERTy; and ``esmc_300m``, the paper's backbone, whose weights a user brings.
"""

from pathlib import Path

import torch
from torch import Tensor

from maskmi.artefacts import load_checkpoint, sha256
from maskmi.noise import uniform
from maskmi.parallel import InThreads
from maskmi.protein.adapter import AMINO_ACIDS, PADDING, ByLength
from maskmi.protein.antiberty import SHA256 as ANTIBERTY_SHA256
from maskmi.protein.antiberty import load_antiberty
from maskmi.protein.esmc import SHA256 as ESMC_300M_SHA256
from maskmi.protein.esmc import find_esmc_300m, load_esmc_300m, load_esmc_small
from maskmi.protein.relations import relations
from maskmi.study import Backbone, checkpoint_path

MASK = len(AMINO_ACIDS)
STUDIES = ("esmc_small", "antiberty", "esmc_300m")
HEAD_WIDTH = {"esmc_small": 128, "antiberty": 256, "esmc_300m": 384}  # the last gives 818,305 parameters
LENGTHS = (50, 100)  # residues of what is generated from nothing (paper)


def load_backbone(
    study: str,
    *,
    checkpoint: str | Path = "shipped",
    artefacts: str | Path | None = None,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
) -> Backbone:
    """The study's backbone.

    Args:
        checkpoint: for ``esmc_small`` as in :func:`maskmi.study.checkpoint_path`; for ``esmc_300m`` ``shipped`` is the
            hub's cache, else a download, and anything else the path of a local file or folder; ``antiberty`` comes
            with its package.

    Raises:
        ValueError: for an unknown study, or a damaged checkpoint.
        FileNotFoundError: where the weights are missing; says what to do.
    """
    how = {"dtype": dtype, "device": device}
    if study == "antiberty":
        network, digest, metadata = load_antiberty(**how), ANTIBERTY_SHA256, {"source": "antiberty 0.1.3"}
    elif study == "esmc_300m":
        path = find_esmc_300m(None if checkpoint == "shipped" else checkpoint)
        network, digest, metadata = load_esmc_300m(path, **how), ESMC_300M_SHA256, {"source": path.name}
    elif study == "esmc_small":
        path = checkpoint_path(study, checkpoint, artefacts)
        network, digest, metadata = load_esmc_small(path, **how), sha256(path), load_checkpoint(path)[1]
    else:
        raise ValueError(f"there is no study {study!r}; choose among {', '.join(STUDIES)}")
    network.requires_grad_(False)
    model = ByLength(InThreads(network))
    return Backbone(study, network, model, digest, metadata, relations, HEAD_WIDTH[study])


def all_masked(length: Tensor) -> Tensor:
    """States [N, L] of ``length`` [N] masked positions each, padded to the longest."""
    position = torch.arange(int(length.max()))
    return torch.where(position < length[:, None], MASK, PADDING)


def random_lengths(count: int, seed: int, shortest: int = LENGTHS[0], longest: int = LENGTHS[1]) -> Tensor:
    """Lengths [count] drawn evenly from ``shortest … longest``; the first ones are the same whatever the count."""
    return shortest + (uniform(seed, torch.arange(count)) * (longest - shortest + 1)).long()
