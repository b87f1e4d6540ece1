"""The steps of the Sudoku study that several notebooks share; each result is stored and made only once.

Two studies run the same steps: ``sudoku`` on the *strong* backbone and ``sudoku_paper_strength`` on a plain one that
solves about as many puzzles as the paper's, where a comparison of decoders says most.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from maskmi import ROOT
from maskmi.artefacts import Artefacts, code_digest, load_checkpoint, sha256, tensor_sha256
from maskmi.contexts import random_contexts
from maskmi.decoding import Decision, View, decode, joint_error
from maskmi.head import PairHead
from maskmi.metrics import bootstrap_interval, wilson_interval
from maskmi.parallel import InThreads
from maskmi.probing import MATRICES, Probes, symmetrise
from maskmi.shards import probe_shards
from maskmi.sudoku.data import PuzzleSet, load_test_set
from maskmi.sudoku.grid import is_valid_solution, relations, violations
from maskmi.sudoku.mdm import MASK, WIDTH, SudokuMDM
from maskmi.sudoku.solver import random_grids
from maskmi.train_head import HeadRecipe, hidden_states, train_head

CHECKPOINTS = ROOT / "checkpoints"
BACKBONES = {"sudoku": "strong", "sudoku_paper_strength": "paper_strength"}
ESTIMATORS = ("entropy_drop", "mixture", "tv")
CONTEXT_SEEDS = {
    "train": 2_000_003,
    "held_out": 2_000_004,
}  # grids of contexts; training grids have 0, test sets 101-106


@dataclass(frozen=True)
class Backbone:
    """A frozen model and what identifies it."""

    name: str
    model: InThreads
    sha256: str
    parameters: int
    metadata: dict[str, Any]  # recipe and last line of the training log

    @property
    def identity(self) -> dict[str, str]:
        """What a stored result names as its input."""
        dtype = str(next(self.model.model.parameters()).dtype)
        return {"backbone": self.sha256, "dtype": dtype, "code": code_digest("maskmi.sudoku.mdm")}


def checkpoint_path(study: str, checkpoint: str | Path = "shipped", artefacts: str | Path | None = None) -> Path:
    """Where a study's checkpoint lies; see :func:`load_backbone`. Relative paths start at the repository's root.

    Raises:
        ValueError: for an unknown study, or ``trained`` without a folder of artefacts.
    """
    name = _known(study)
    if checkpoint == "trained":
        if artefacts is None:
            raise ValueError("checkpoint 'trained' needs the folder of artefacts that 0_pretrain wrote to")
        return ROOT / artefacts / "pretrained" / f"{name}.safetensors"
    return CHECKPOINTS / f"{name}.safetensors" if checkpoint == "shipped" else ROOT / checkpoint


def training_log(checkpoint: Path) -> pd.DataFrame:
    """The log beside a checkpoint, a row each time it was validated; where it is missing, the last row alone."""
    path = checkpoint.with_suffix(".jsonl")
    return pd.read_json(path, lines=True) if path.exists() else pd.DataFrame([load_checkpoint(checkpoint)[1]["log"]])


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
        checkpoint: ``shipped`` with the repository, ``trained`` by ``0_pretrain`` into the folder ``artefacts``, or the
            path of another checkpoint of the same form.

    Raises:
        ValueError: for an unknown study, a damaged checkpoint or one of another model.
        FileNotFoundError: where the checkpoint is missing.
    """
    name, path = _known(study), checkpoint_path(study, checkpoint, artefacts)
    weights, metadata = load_checkpoint(path, made_by=f"./run_all.sh --profile full --study {study}")
    try:
        model = SudokuMDM(metadata["recipe"]["confined_heads"])
        model.load_state_dict(weights)
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"checkpoint {path} is no Sudoku backbone: give one that 0_pretrain wrote") from error
    model = model.to(device, dtype).eval().requires_grad_(False)
    return Backbone(name, InThreads(model), sha256(path), sum(p.numel() for p in model.parameters()), metadata)


def contexts(count: int, split: str = "train") -> Tensor:
    """Randomly masked full grids [count, 81] to probe: ``t ~ U[0, 1]``, at least two cells masked.

    ``split`` is ``train`` or ``held_out``. The first ones are the same whatever the count.
    """
    if split not in CONTEXT_SEEDS:
        raise ValueError(f"there is no split {split!r}; choose among {', '.join(CONTEXT_SEEDS)}")
    seed = CONTEXT_SEEDS[split]
    grids = torch.from_numpy(random_grids(count, seed).astype(np.int64))
    return random_contexts(grids, MASK, seed)[0]


def probed(
    backbone: Backbone,
    store: Artefacts,
    tokens: Tensor,
    *,
    tolerance: float,
    jacobian: bool = False,
    matrices: tuple[str, ...] = MATRICES,
    progress: bool = True,
) -> Probes:
    """Probes of contexts, stored by shards of 64."""
    return probe_shards(
        backbone.model,
        tokens,
        store,
        inputs=backbone.identity,
        tolerance=tolerance,
        jacobian=jacobian,
        matrices=matrices,
        progress=progress,
    )


def labels_of(probes: Probes, estimator: str) -> tuple[Tensor, Tensor]:
    """Symmetric labels and known pairs [N, L, L] of an estimator (``entropy_drop``, ``mixture``, ``tv``)."""
    return symmetrise(getattr(probes, estimator), probes.probed, probes.masked)


def new_head(seed: int = 0) -> PairHead:
    """An untrained head for the Sudoku backbone: 99,969 parameters, as in the paper."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PairHead(WIDTH, torch.as_tensor(relations()))


def fitted_head(
    backbone: Backbone,
    store: Artefacts,
    tokens: Tensor,
    labels: Tensor,
    known: Tensor,
    recipe: HeadRecipe,
    *,
    progress: bool = True,
) -> tuple[PairHead, dict[str, Any]]:
    """A head trained on labelled contexts, stored; and ``{"sha256", "losses", "parameters"}``."""

    def make() -> dict[str, Tensor]:
        head = new_head(recipe.seed)
        losses = train_head(head, hidden_states(backbone.model, tokens), labels, known, recipe, progress=progress)
        return dict(head.state_dict()) | {"losses": torch.tensor(losses)}

    weights = dict(
        store.get_or_make(
            "head",
            make,
            parameters=asdict(recipe),
            inputs=backbone.identity | {"tokens": tokens, "labels": labels, "known": known},
            code=["maskmi.train_head"],
        )
    )
    losses = weights.pop("losses").tolist()
    head = new_head()
    head.load_state_dict(weights)
    head.requires_grad_(False)
    return head, {
        "sha256": tensor_sha256(weights),
        "losses": losses,
        "parameters": sum(p.numel() for p in head.parameters()),
    }


def fitted_heads(
    backbone: Backbone, store: Artefacts, n_contexts: int, tolerance: float, recipe: HeadRecipe, **options: Any
) -> dict[str, PairHead]:
    """A head for each kind of label (``entropy_drop``, the paper's; ``mixture``; ``tv``), on the first contexts."""
    tokens = contexts(n_contexts)
    probes = probed(backbone, store, tokens, tolerance=tolerance, matrices=ESTIMATORS, **options)
    labelled = {name: labels_of(probes, name) for name in ESTIMATORS}
    return {name: fitted_head(backbone, store, tokens, *labelled[name], recipe, **options)[0] for name in ESTIMATORS}


def load_head(study: str, label: str = "entropy_drop") -> PairHead:
    """The shipped head of a study's shipped backbone, for ``entropy_drop`` (the paper's estimator) or another label."""
    path = CHECKPOINTS / f"{_known(study)}.head.{label}.safetensors"
    weights, _ = load_checkpoint(path, made_by=f"./run_all.sh --profile full --study {study}")
    head = new_head()
    head.load_state_dict(weights)
    return head.requires_grad_(False)


def decoded(
    backbone: Backbone,
    store: Artefacts,
    puzzles: PuzzleSet,
    decoder: Callable[[View], Decision],
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
    temperature: float = 0.0,
    n_joint_error: int = 200,
    batch_size: int = 512,
    progress: bool = True,
) -> dict[str, Tensor]:
    """Decode a puzzle set and measure the outcome; stored.

    Args:
        settings: what tells this decoder from another (its name, budget, source of its matrix); the key of the result.
        n_joint_error: number of leading puzzles on which the joint error of the steps is measured.

    Returns:
        For each puzzle ``solved`` (a valid grid that keeps the givens), ``solution`` (the grid that the puzzle was made
        from), ``violations``, ``passes``, ``matrix_passes``, ``steps``; for each parallel step of the first puzzles
        ``joint_error``, ``joint_members``, ``joint_left``, ``joint_spent``, ``joint_sequence``, ``joint_step``; and
        scalars ``batched_calls``, ``seconds``.
    """

    def make() -> dict[str, Tensor]:
        tokens = torch.from_numpy(puzzles.puzzles.astype(np.int64))
        result = decode(
            backbone.model,
            tokens,
            decoder,
            seed=seed,
            temperature=temperature,
            batch_size=batch_size,
            keep_trace=True,
            progress=progress,
        )
        grids = result.tokens.numpy().astype(np.uint8)
        outcome = {
            "solved": torch.from_numpy(is_valid_solution(grids, puzzles.puzzles)),
            "solution": torch.from_numpy((grids == puzzles.solutions).all(1)),
            "violations": torch.from_numpy(np.asarray(violations(grids), dtype=np.int64)),
            "passes": result.passes,
            "matrix_passes": result.matrix_passes,
            "steps": result.steps,
            "batched_calls": torch.tensor(result.batched_calls),
            "seconds": torch.tensor(result.seconds, dtype=torch.float64),
        }
        first = result.trace.first(n_joint_error)
        error = joint_error(backbone.model, tokens[:n_joint_error], first)
        return outcome | {
            "joint_error": error.error.double(),
            "joint_members": error.members,
            "joint_left": error.left,
            "joint_spent": error.spent.double(),
            "joint_sequence": error.sequence,
            "joint_step": error.step,
        }

    return store.get_or_make(
        "decoded",
        make,
        parameters={"settings": dict(settings), "seed": seed, "temperature": temperature, "joint": n_joint_error},
        inputs=backbone.identity | {"puzzles": torch.from_numpy(puzzles.puzzles), "head": _head_of(decoder)},
        # Not the whole package: another decoder's code is none of this one's business.
        code=["maskmi.decoding.loop", "maskmi.decoding.joint_error", *_modules(decoder)],
    )


def _head_of(decoder: Callable[[View], Decision]) -> str:
    """SHA-256 of the weights of the head that a decoder reads."""
    head = getattr(getattr(decoder, "pairwise", None), "head", None)
    return "none" if head is None else tensor_sha256(head.state_dict())


def _modules(decoder: Callable[[View], Decision]) -> list[str]:
    """Modules of a decoder, its matrix's source and the head that this reads."""
    source = getattr(decoder, "pairwise", None)
    parts = [decoder, source, getattr(source, "head", None)]
    return sorted({type(part).__module__ for part in parts if part is not None})


def run_sweep(
    backbone: Backbone,
    store: Artefacts,
    sweep: Iterable[tuple[dict[str, Any], Callable[[View], Decision]]],
    test_set: str,
    n_puzzles: int,
    *,
    temperature: float = 0.0,
    progress: bool = True,
    **options: Any,
) -> list[tuple[dict[str, Any], dict[str, Tensor]]]:
    """``(settings, outcome)`` of each decoder of a sweep on the first puzzles of a set; see :func:`decoded`."""
    puzzles = puzzle_set(test_set, n_puzzles)
    results = []
    bar = tqdm(list(sweep), desc=test_set, unit="setting", disable=not progress)
    for settings, decoder in bar:
        settings = settings | {"test_set": test_set} | ({"temperature": temperature} if temperature else {})
        bar.set_postfix_str(settings["decoder"])
        outcome = decoded(
            backbone, store, puzzles, decoder, settings, temperature=temperature, progress=False, **options
        )
        results.append((settings, outcome))
    return results


def summary(outcome: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A decoding row of the statistics file from the outcome of :func:`decoded`; intervals at 95 %."""
    n = len(outcome["solved"])
    solved = int(outcome["solved"].sum())
    own = {key: value for key, value in settings.items() if key not in ("decoder", "test_set")}
    row = {
        "decoder": settings["decoder"],
        "settings": own,
        "test_set": settings["test_set"],
        "n": n,
        "passes": outcome["passes"].double().mean().item(),
        "steps": outcome["steps"].double().mean().item(),
        "batched_calls": int(outcome["batched_calls"]),
        "seconds_per_sequence": outcome["seconds"].item() / n,
        "metrics": {
            "solved": wilson_interval(solved, n)._asdict(),
            "violations": bootstrap_interval(outcome["violations"].double().numpy())._asdict(),
        },
    }
    if outcome["matrix_passes"].any():
        row["matrix_passes"] = outcome["matrix_passes"].double().mean().item()
    if outcome["joint_error"].isfinite().any():
        errors = outcome["joint_error"]
        row["joint_error_nats"] = errors[errors.isfinite()].mean().item()
    return row


def puzzle_set(name: str, n_puzzles: int) -> PuzzleSet:
    """The first ``n_puzzles`` of a set (they are shuffled, so these are a fair sample)."""
    puzzles = load_test_set(name)
    if not 1 <= n_puzzles <= len(puzzles.puzzles):
        raise ValueError(f"set {name} has {len(puzzles.puzzles)} puzzles: n_puzzles cannot be {n_puzzles}")
    return PuzzleSet(*(column[:n_puzzles] for column in puzzles))


def _known(study: str) -> str:
    if study not in BACKBONES:
        raise ValueError(f"there is no study {study!r}; choose among {', '.join(BACKBONES)}")
    return BACKBONES[study]
