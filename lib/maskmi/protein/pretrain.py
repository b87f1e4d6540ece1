"""Training ``esmc_small``: ESM-C's architecture as a masked diffusion model of protein sequences.

Each sequence is masked with its own ratio ``t ~ U[0, 1]``, each residue with probability ``t``, for decoding starts
from all masks. The loss is the mean cross-entropy over all masked residues of a batch, so that a sequence counts by how
much of it is masked. (The bound on the likelihood weights residues by ``1/t``: nearly whole sequences would rule it by
a few residues each.) Everything random is a function of (seed, step): a run that was stopped goes on exactly where its
last snapshot was.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskmi.artefacts import load_checkpoint, save_checkpoint
from maskmi.precision import find_dtype
from maskmi.protein.adapter import MASK, WIDTH_STEP, ByLength, encode, lengths, network_width
from maskmi.protein.esmc import ESMC_SMALL, ESMCModel, Layout, new_esmc
from maskmi.training import WORKERS, check_origin, fit

VALIDATED = 256  # held-out sequences, each looked at once for every bin of mask ratios
BINS = 5


@dataclass(frozen=True)
class Recipe:
    """One training run."""

    width: int = ESMC_SMALL.width
    heads: int = ESMC_SMALL.heads
    layers: int = ESMC_SMALL.layers
    steps: int = 800
    micro_tokens: int = 2048  # of one forward pass, padding and ends included: sequences of one width
    micro_batches: int = 8  # a step, shared by the workers
    muon_rate: float = 0.02  # matrices
    adam_rate: float = 2e-3  # embedding, norms, biases, the last layer
    warmup_steps: int = 100
    decay_share: float = 0.3  # the learning rates fall linearly to zero over this last share of the steps
    seed: int = 0

    def __post_init__(self):
        if min(self.steps, self.micro_batches, self.warmup_steps) < 1 or self.micro_tokens < WIDTH_STEP:
            raise ValueError(
                f"steps, micro_batches and warmup_steps must be at least 1, micro_tokens at least {WIDTH_STEP}"
            )
        if min(self.width, self.heads, self.layers) < 1 or self.width % (2 * self.heads):
            raise ValueError(
                f"a width of {self.width} can't be shared by {self.heads} heads: it must be an even multiple of them"
            )

    @property
    def layout(self) -> Layout:
        return Layout(self.width, self.heads, self.layers)


class Batches:
    """What each step shows of ``tokens`` [N, L]: micro-batches of sequences of like length.

    Each epoch is its own permutation of the sequences and of the micro-batches, so a step mixes lengths.
    """

    def __init__(self, tokens: Tensor, recipe: Recipe):
        self.tokens, self.recipe = tokens, recipe
        self.width = network_width(lengths(tokens)).numpy()
        sizes = [(self.width == w).sum() / max(1, recipe.micro_tokens // w) for w in np.unique(self.width)]
        self.per_epoch = int(sum(np.ceil(sizes)))
        self._epoch = lru_cache(2)(self._shuffled)  # a step may lie in two of them

    def _shuffled(self, epoch: int) -> list[np.ndarray]:
        rng = np.random.default_rng([self.recipe.seed, 1, epoch])
        order = rng.permutation(len(self.tokens))
        micro = []
        for width in np.unique(self.width):
            rows = order[self.width[order] == width]
            size = max(1, self.recipe.micro_tokens // int(width))
            micro += [rows[start : start + size] for start in range(0, len(rows), size)]
        return [micro[i] for i in rng.permutation(len(micro))]

    def __call__(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """Tokens and targets [B, L] of each micro-batch; targets are -100 where a residue is visible or ambiguous."""
        rng = np.random.default_rng([self.recipe.seed, 2, step])
        parts = []
        for micro in range(step * self.recipe.micro_batches, (step + 1) * self.recipe.micro_batches):
            epoch, place = divmod(micro, self.per_epoch)
            rows = self._epoch(epoch)[place]
            whole = self.tokens[rows, : self.width[rows[0]] - 2]
            # Ratios are spread evenly over a micro-batch; each alone is uniform.
            ratio = (rng.permutation(len(rows)) + rng.random(len(rows))) / len(rows)
            parts.append(masked(whole, torch.from_numpy(rng.random(whole.shape) < ratio[:, None])))
        return parts


def masked(whole: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and targets [B, L] with the amino acids ``where`` masked; ambiguous letters and padding stay."""
    where = where & (whole < MASK)
    return whole.masked_fill(where, MASK), whole.masked_fill(~where, -100)


class Validation:
    """Loss of held-out sequences, masked in the same places each time."""

    def __init__(self, tokens: Tensor, seed: int):
        chosen = (
            np.linspace(0, len(tokens) - 1, min(VALIDATED, len(tokens))).round().astype(int)
        )  # of a sorted list too
        whole = tokens[chosen].repeat(BINS, 1)
        self.bins = torch.arange(BINS).repeat_interleave(len(chosen))
        rng = np.random.default_rng([seed, 3])
        ratio = (self.bins.numpy() + rng.random(len(whole))) / BINS
        self.tokens, self.targets = masked(whole, torch.from_numpy(rng.random(whole.shape) < ratio[:, None]))

    @torch.no_grad()
    def __call__(self, model: ESMCModel) -> dict[str, float | list[float | None]]:
        """Mean cross-entropy in nats over masked residues: of all, and by mask ratio (None: none masked)."""
        logits = torch.cat([ByLength(model)(part).logits for part in self.tokens.split(64)])
        losses = F.cross_entropy(logits.transpose(1, 2), self.targets, reduction="none").double()
        sums = torch.zeros(BINS, 2).double()
        sums.index_add_(0, self.bins, torch.stack([losses.sum(1), (self.targets >= 0).sum(1)], 1).double())
        total, count = sums.sum(0).tolist()
        by_ratio = [loss / n if n else None for loss, n in sums.tolist()]
        return {"validation_loss": total / max(1.0, count), "validation_loss_by_mask_ratio": by_ratio}


def train(
    recipe: Recipe,
    sequences: Sequence[str],
    validation: Sequence[str],
    folder: Path,
    name: str = "esmc_small",
    *,
    dtype: torch.dtype | str = "auto",
    snapshot_every: int = 200,
) -> ESMCModel:
    """Trains a model and writes ``<name>.safetensors`` and the log ``<name>.jsonl`` into ``folder``.

    Weights are kept in float32 while training, used in ``dtype`` (see :func:`maskmi.precision.find_dtype`), and stored
    in bfloat16, half the size, to be the same whatever they are run in later. A snapshot beside the log lets an
    interrupted run go on; a run that was finished before is read.

    Args:
        sequences: amino acids and the ambiguous letters that ESM-C knows; the latter are context, never predicted.
        validation: held-out sequences for the log alone.

    Returns:
        The trained model, its weights rounded to bfloat16, in float32.

    Raises:
        ValueError: for no sequences, a letter that ESM-C lacks, or a folder with a run of another recipe or of other
            sequences.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not sequences or not validation:
        raise ValueError("training needs at least one sequence, and one to validate with")
    torch.manual_seed(recipe.seed)
    model = new_esmc(recipe.layout)
    digests = [hashlib.sha256("\n".join(part).encode()).hexdigest() for part in (sequences, validation)]
    dtype = find_dtype(dtype)
    origin = {"recipe": asdict(recipe), "name": name, "sequences": digests, "dtype": str(dtype)}
    finished = folder / f"{name}.safetensors"
    if finished.exists():
        weights, metadata = load_checkpoint(finished)
        check_origin(metadata, origin, finished)
        model.esmc.load_state_dict(weights)
        return model
    log = fit(
        model,
        [new_esmc(recipe.layout).to(dtype) for _ in range(WORKERS)],
        recipe,
        Batches(encode(sequences, model.extra), recipe),
        Validation(encode(validation, model.extra), recipe.seed),
        folder / name,
        matrices=("esmc.transformer.blocks.", "esmc.sequence_head.0."),
        origin=origin,
        snapshot_every=snapshot_every,
    )
    model = model.to(torch.bfloat16)
    save_checkpoint(finished, model.esmc.state_dict(), origin | {"log": log[-1]})
    finished.with_suffix(".snapshot.pt").unlink(missing_ok=True)
    return model.float()
