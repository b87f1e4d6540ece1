"""Training the Sudoku MDM: masked cross-entropy on random full grids (arXiv 2605.20187, Sudoku experiment).

Everything random is a function of (seed, step), so a run that was stopped goes on exactly where its last snapshot was.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskmi.artefacts import load_checkpoint, save_checkpoint
from maskmi.precision import find_dtype
from maskmi.sudoku import solver, symmetry
from maskmi.sudoku.grading import after_singles
from maskmi.sudoku.mdm import MASK, SudokuMDM
from maskmi.training import WORKERS, fit

HELD_OUT = 512  # puzzles for validation
MATRICES = ("layers.", "head_in")  # hidden matrices, which Muon trains


@dataclass(frozen=True)
class Recipe:
    """One training run, or a stage of one."""

    grids: int = 100_000  # distinct training grids
    presentations: int = 768_000  # grids shown; the paper shows 10 × 100,000 in all
    shown: int = 0  # grids shown by the stage before
    continues: str = ""  # name of the recipe of that stage, whose weights this one starts from
    batch_size: int = 128
    micro_batch: int = 32  # one worker's share at a time; on a CPU, the size whose activations stay in cache
    confined_heads: int = 2  # of each layer, for rows, columns and boxes each; 0 is a plain transformer
    augment: bool = True  # a random symmetry of the grid at each presentation
    puzzle_share: float = 0.5  # share of presentations masked like puzzles with one solution, the rest uniformly
    min_blanks: int = 44  # of these puzzles; their blanks lie evenly between the two
    max_blanks: int = 60
    stuck_share: float = 0.0  # share of the puzzles that start where naked and hidden singles end
    muon_rate: float = 0.02  # matrices
    adam_rate: float = 2e-3  # embeddings, norms, biases, the last layer
    warmup_steps: int = 100
    decay_share: float = 0.3  # the learning rates fall linearly to zero over this last share of the steps
    seed: int = 0

    @property
    def steps(self) -> int:
        return self.presentations // self.batch_size


RECIPES = {
    "strong_first": Recipe(),
    # The rest of the paper's budget: what is left to learn are the puzzles that simple logic does not solve.
    "strong": Recipe(
        presentations=232_000,
        shown=768_000,
        continues="strong_first",
        puzzle_share=0.75,
        min_blanks=50,
        stuck_share=0.5,
        muon_rate=0.01,
        adam_rate=1e-3,
        decay_share=1.0,
    ),
    "paper_strength": Recipe(presentations=73_600, batch_size=64, confined_heads=0, augment=False, puzzle_share=0.0),
}


def masked_batch(grids: np.ndarray, recipe: Recipe, step: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets [batch_size, 81] of a step; targets are -100 where the cell is visible."""
    step += recipe.shown // recipe.batch_size
    rng = np.random.default_rng([recipe.seed, step])
    first = step * recipe.batch_size
    order = np.arange(first, first + recipe.batch_size)
    # Each epoch is its own permutation of the training grids.
    chosen = np.empty(len(order), dtype=np.int64)
    for epoch in np.unique(order // len(grids)):
        here = order // len(grids) == epoch
        permutation = np.random.default_rng([recipe.seed, 1, int(epoch)]).permutation(len(grids))
        chosen[here] = permutation[order[here] % len(grids)]
    batch = grids[chosen]
    if recipe.augment:
        batch = symmetry.random_symmetry(batch, int(rng.integers(2**62)))
    masked = rng.random(batch.shape) < rng.random((len(batch), 1))
    puzzles = round(recipe.puzzle_share * len(batch))
    if puzzles:
        seed = int(rng.integers(2**62))
        unsolved = solver.unique_puzzles(batch[:puzzles], seed, recipe.min_blanks, recipe.max_blanks)
        if recipe.stuck_share:
            stuck = after_singles(unsolved)
            replaced = (rng.random(puzzles) < recipe.stuck_share) & (stuck == MASK).any(1)
            unsolved[replaced] = stuck[replaced]
        blanks = unsolved == MASK
        # Half of them stand for a puzzle as given, the others for a state on the way to its solution.
        kept = np.where(rng.random((puzzles, 1)) < 0.5, 1.0, rng.random((puzzles, 1)))
        masked[:puzzles] = blanks & (rng.random(blanks.shape) < kept)
    batch = batch.astype(np.int64)
    tokens = torch.from_numpy(np.where(masked, MASK, batch))
    targets = torch.from_numpy(np.where(masked, batch, -100))
    return tokens, targets


@torch.no_grad()
def validation_scores(model: SudokuMDM, solutions: np.ndarray, puzzles: np.ndarray) -> dict[str, float]:
    """One pass over held-out puzzles: cross-entropy in nats and accuracy on their blank cells."""
    tokens = torch.from_numpy(puzzles.astype(np.int64))
    targets = torch.from_numpy(solutions.astype(np.int64))
    masked = tokens == MASK
    logits = torch.cat([model(part).logits for part in tokens.split(64)]).float()[masked]
    return {
        "puzzle_loss": F.cross_entropy(logits, targets[masked]).item(),
        "puzzle_accuracy": (logits.argmax(-1) == targets[masked]).float().mean().item(),
    }


def train(recipe: Recipe, folder: Path, name: str, *, dtype: torch.dtype | str = "auto", snapshot_every: int = 200):
    """Trains a model and writes ``<name>.safetensors`` and the log ``<name>.jsonl`` into ``folder``.

    Weights are kept in float32 while training, used in ``dtype`` (see :func:`maskmi.precision.find_dtype`), and stored
    in bfloat16, half the size, to be the same whatever they are run in later. A snapshot beside the log lets an
    interrupted run go on; a run that was finished before is read. A stage that continues another makes that first.

    Returns:
        The trained :class:`SudokuMDM`, its weights rounded to bfloat16, in float32.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    model = SudokuMDM(recipe.confined_heads)
    finished = folder / f"{name}.safetensors"
    dtype = find_dtype(dtype)
    if finished.exists():
        weights, metadata = load_checkpoint(finished)
        if Recipe(**metadata["recipe"]) != recipe:
            raise ValueError(f"{finished} was trained by another recipe; delete it to start anew")
        model.load_state_dict(weights)
        return model
    before = []
    if recipe.continues:
        stage = train(RECIPES[recipe.continues], folder, recipe.continues, dtype=dtype, snapshot_every=snapshot_every)
        model.load_state_dict(stage.state_dict())
        before = [json.loads(line) for line in (folder / f"{recipe.continues}.jsonl").read_text().splitlines()]
    grids = solver.random_grids(recipe.grids, recipe.seed)
    held_out = solver.random_grids(HELD_OUT, recipe.seed + 1_000_003)
    held_out_puzzles = solver.unique_puzzles(held_out, recipe.seed + 1, 50, 58)

    def batches(step: int) -> list[tuple[Tensor, Tensor]]:
        tokens, targets = masked_batch(grids, recipe, step)
        return list(zip(tokens.split(recipe.micro_batch), targets.split(recipe.micro_batch), strict=True))

    log = fit(
        model,
        [SudokuMDM(recipe.confined_heads).to(dtype) for _ in range(WORKERS)],
        recipe,
        batches,
        lambda replica: validation_scores(replica, held_out, held_out_puzzles),
        folder / name,
        matrices=MATRICES,
        origin={"recipe": asdict(recipe), "dtype": str(dtype)},
        snapshot_every=snapshot_every,
        before=before,
        unit="grids",
    )
    metadata = {"recipe": asdict(recipe), "name": name, "dtype": str(dtype), "log": log[-1]}
    model = model.to(torch.bfloat16)
    save_checkpoint(finished, model.state_dict(), metadata)
    finished.with_suffix(".snapshot.pt").unlink(missing_ok=True)
    return model.float()
