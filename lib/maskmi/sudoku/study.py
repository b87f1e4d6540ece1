"""The Sudoku study: its backbones, contexts and puzzle sets, for the steps of :mod:`maskmi.study`.

Two studies run the same steps: ``sudoku`` on the *strong* backbone and ``sudoku_paper_strength`` on a plain one that
solves about as many puzzles as the paper's, where a comparison of decoders says most.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskmi.artefacts import Artefacts, load_checkpoint, sha256
from maskmi.contexts import random_contexts
from maskmi.metrics import bootstrap_interval, wilson_interval
from maskmi.parallel import InThreads
from maskmi.precision import find_dtype
from maskmi.study import Backbone, Decoder, Results, checkpoint_path, decoding_row
from maskmi.study import run_sweep as sweep_from
from maskmi.sudoku.data import PuzzleSet, load_test_set
from maskmi.sudoku.grid import is_valid_solution, relations, violations
from maskmi.sudoku.mdm import MASK, SudokuMDM
from maskmi.sudoku.solver import random_grids

BACKBONES = {"sudoku": "strong", "sudoku_paper_strength": "paper_strength"}
CONTEXT_SEEDS = {
    "train": 2_000_003,
    "held_out": 2_000_004,
}  # grids of contexts; training grids have 0, test sets 101-106


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
        checkpoint: ``shipped`` with the repository, ``trained`` by ``0_pretrain`` into the folder ``artefacts``, or the
            path of another checkpoint of the same form.
        dtype: as in :func:`maskmi.precision.find_dtype`.

    Raises:
        ValueError: for an unknown study or dtype, a damaged checkpoint or one of another model.
        FileNotFoundError: where the checkpoint is missing.
    """
    name = backbone_name(study)
    path = checkpoint_path(name, checkpoint, artefacts)
    weights, metadata = load_checkpoint(path, made_by=f"./run_all.sh --profile full --study {study}")
    try:
        model = SudokuMDM(metadata["recipe"]["confined_heads"])
        model.load_state_dict(weights)
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"checkpoint {path} is no Sudoku backbone: give one that 0_pretrain wrote") from error
    model = model.to(device, find_dtype(dtype, device)).eval().requires_grad_(False)
    return Backbone(name, model, InThreads(model), sha256(path), metadata, torch.as_tensor(relations()), study=study)


def contexts(count: int, split: str = "train") -> Tensor:
    """Randomly masked full grids [count, 81] to probe: ``t ~ U[0, 1]``, at least two cells masked.

    ``split`` is ``train`` or ``held_out``. The first ones are the same whatever the count.
    """
    if split not in CONTEXT_SEEDS:
        raise ValueError(f"there is no split {split!r}; choose among {', '.join(CONTEXT_SEEDS)}")
    seed = CONTEXT_SEEDS[split]
    grids = torch.from_numpy(random_grids(count, seed).astype(np.int64))
    return random_contexts(grids, MASK, seed)[0]


def run_sweep(
    backbone: Backbone,
    store: Artefacts,
    sweep: Iterable[tuple[dict[str, Any], Decoder]],
    test_set: str,
    n_puzzles: int,
    **options: Any,
) -> Results:
    """``(settings, outcome)`` of each decoder of a sweep on the first puzzles of a set (:func:`maskmi.study.decoded`).

    An outcome holds for each puzzle ``solved`` (a valid grid that keeps the givens), ``solution`` (the grid that the
    puzzle was made from) and ``violations``.
    """
    puzzles = puzzle_set(test_set, n_puzzles)
    states = torch.from_numpy(puzzles.puzzles)
    return sweep_from(
        backbone,
        store,
        sweep,
        states.long(),
        name=test_set,
        judge=lambda tokens: judged(tokens, puzzles),
        inputs={"puzzles": states},
        **options,
    )


def judged(tokens: Tensor, puzzles: PuzzleSet) -> dict[str, Tensor]:
    """What became of each puzzle: ``solved``, ``solution`` (bool [N]) and ``violations`` (int64 [N])."""
    grids = tokens.numpy().astype(np.uint8)
    return {
        "solved": torch.from_numpy(is_valid_solution(grids, puzzles.puzzles)),
        "solution": torch.from_numpy((grids == puzzles.solutions).all(1)),
        "violations": torch.from_numpy(np.asarray(violations(grids), dtype=np.int64)),
    }


def summary(outcome: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A decoding row of the statistics file from an outcome of :func:`run_sweep`; intervals at 95 %."""
    metrics = {
        "solved": wilson_interval(int(outcome["solved"].sum()), len(outcome["solved"]))._asdict(),
        "violations": bootstrap_interval(outcome["violations"].double().numpy())._asdict(),
    }
    return decoding_row(outcome, settings, metrics)


def puzzle_set(name: str, n_puzzles: int) -> PuzzleSet:
    """The first ``n_puzzles`` of a set (they are shuffled, so these are a fair sample)."""
    puzzles = load_test_set(name)
    if not 1 <= n_puzzles <= len(puzzles.puzzles):
        raise ValueError(f"set {name} has {len(puzzles.puzzles)} puzzles: n_puzzles cannot be {n_puzzles}")
    return PuzzleSet(*(column[:n_puzzles] for column in puzzles))


def backbone_name(study: str) -> str:
    """The backbone of a study.

    Raises:
        ValueError: for an unknown study.
    """
    if study not in BACKBONES:
        raise ValueError(f"there is no study {study!r}; choose among {', '.join(BACKBONES)}")
    return BACKBONES[study]
