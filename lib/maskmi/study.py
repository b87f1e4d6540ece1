"""The steps that every study shares, whatever its model; each result is stored and made only once.

A study brings a :class:`Backbone`, contexts to probe, states to decode from and a judge of what came out; see
:mod:`maskmi.sudoku.study`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from maskmi import ROOT
from maskmi.artefacts import Artefacts, code_digest, load_checkpoint, save_checkpoint, tensor_sha256
from maskmi.decoding import Decision, View, decode, joint_error
from maskmi.head import PAIR_WIDTH, PairHead
from maskmi.model import MaskedModel
from maskmi.probing import MATRICES, Probes, symmetrise
from maskmi.shards import probe_shards
from maskmi.train_head import HeadRecipe, hidden_states, train_head

CHECKPOINTS = ROOT / "checkpoints"
ESTIMATORS = ("entropy_drop", "mixture", "tv")
Decoder = Callable[[View], Decision]
Judge = Callable[[Tensor], Mapping[str, Tensor]]
Results = list[tuple[dict[str, Any], dict[str, Tensor]]]  # settings and outcome of each decoder


@dataclass(frozen=True)
class Backbone:
    """A frozen model, what identifies it, and what its pair heads look like."""

    name: str
    network: nn.Module
    model: MaskedModel  # the network as it is run: in threads, in groups of one length
    sha256: str
    metadata: dict[str, Any]  # recipe and last line of the training log, where it was trained here
    relations: Tensor | Callable[[int], Tensor]  # what a head is told of two positions, see PairHead
    head_width: int = PAIR_WIDTH
    study: str = ""  # whose backbone it is

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.network.parameters())

    @property
    def dtype(self) -> str:
        """The format that the network runs in, ``bfloat16`` or ``float32``."""
        return str(next(self.network.parameters()).dtype).removeprefix("torch.")

    @property
    def identity(self) -> dict[str, str]:
        """What a stored result names as its input."""
        return {"backbone": self.sha256, "dtype": self.dtype, "code": code_digest(type(self.network).__module__)}


def checkpoint_path(name: str, checkpoint: str | Path = "shipped", artefacts: str | Path | None = None) -> Path:
    """Where a backbone's checkpoint lies: ``shipped`` with the repository, ``trained`` by ``0_pretrain`` into
    ``artefacts``, or the path of another one. Relative paths start at the repository's root.

    Raises:
        ValueError: for ``trained`` without a folder of artefacts.
    """
    if checkpoint == "trained":
        if artefacts is None:
            raise ValueError("checkpoint 'trained' needs the folder of artefacts that 0_pretrain wrote to")
        return ROOT / artefacts / "pretrained" / f"{name}.safetensors"
    return CHECKPOINTS / f"{name}.safetensors" if checkpoint == "shipped" else ROOT / checkpoint


def training_log(checkpoint: Path) -> pd.DataFrame:
    """The log beside a checkpoint, a row each time it was validated; where it is missing, the last row alone."""
    path = checkpoint.with_suffix(".jsonl")
    return pd.read_json(path, lines=True) if path.exists() else pd.DataFrame([load_checkpoint(checkpoint)[1]["log"]])


def probed(
    backbone: Backbone,
    store: Artefacts,
    tokens: Tensor,
    *,
    tolerance: float,
    rows: Tensor | None = None,
    jacobian: bool = False,
    matrices: tuple[str, ...] = MATRICES,
    progress: bool = True,
) -> Probes:
    """Probes of contexts, stored by shards of 64; the options are those of :func:`maskmi.probing.probe`."""
    return probe_shards(
        backbone.model,
        tokens,
        store,
        inputs=backbone.identity,
        tolerance=tolerance,
        rows=rows,
        jacobian=jacobian,
        matrices=matrices,
        progress=progress,
    )


def labels_of(probes: Probes, estimator: str) -> tuple[Tensor, Tensor]:
    """Symmetric labels and known pairs [N, L, L] of an estimator (``entropy_drop``, ``mixture``, ``tv``)."""
    return symmetrise(getattr(probes, estimator), probes.probed, probes.masked)


def new_head(backbone: Backbone, seed: int = 0) -> PairHead:
    """An untrained head for a backbone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PairHead(backbone.model.hidden_size, backbone.relations, backbone.head_width)


def _frozen_head(backbone: Backbone, weights: Mapping[str, Tensor]) -> PairHead:
    head = new_head(backbone)
    head.load_state_dict(weights)
    return head.requires_grad_(False)


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
        head = new_head(backbone, recipe.seed)
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
    head = _frozen_head(backbone, weights)
    return head, {
        "sha256": tensor_sha256(weights),
        "losses": losses,
        "parameters": sum(p.numel() for p in head.parameters()),
    }


def fitted_heads(
    backbone: Backbone,
    store: Artefacts,
    tokens: Tensor,
    tolerance: float,
    recipe: HeadRecipe,
    *,
    rows: Tensor | None = None,
    progress: bool = True,
) -> dict[str, PairHead]:
    """A head for each kind of label (``entropy_drop``, the paper's; ``mixture``; ``tv``), on contexts ``tokens``."""
    probes = probed(backbone, store, tokens, tolerance=tolerance, rows=rows, matrices=ESTIMATORS, progress=progress)
    labelled = {name: labels_of(probes, name) for name in ESTIMATORS}
    return {
        name: fitted_head(backbone, store, tokens, *labelled[name], recipe, progress=progress)[0] for name in ESTIMATORS
    }


def load_head(backbone: Backbone, label: str = "entropy_drop") -> PairHead:
    """The shipped head of a shipped backbone, for ``entropy_drop`` (the paper's estimator) or another label.

    Raises:
        FileNotFoundError: where there is none.
        ValueError: where it was made for another checkpoint than this backbone's, or is damaged.
    """
    path = CHECKPOINTS / f"{backbone.name}.head.{label}.safetensors"
    weights, metadata = load_checkpoint(path, made_by=f"./run_all.sh --profile full --study {backbone.study}")
    if metadata["backbone"] != backbone.sha256:
        raise ValueError(f"{path.name} belongs to another backbone, with SHA-256 {metadata['backbone']}: train a head")
    return _frozen_head(backbone, weights)


def save_head(folder: Path, backbone: Backbone, head: PairHead, label: str) -> Path:
    """Write a head as :func:`load_head` reads it, as ``<backbone>.head.<label>.safetensors``."""
    path = folder / f"{backbone.name}.head.{label}.safetensors"
    save_checkpoint(path, head.state_dict(), {"backbone": backbone.sha256, "label": label})
    return path


def decoded(
    backbone: Backbone,
    store: Artefacts,
    tokens: Tensor,
    decoder: Decoder,
    settings: Mapping[str, Any],
    *,
    judge: Judge,
    inputs: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    temperature: float = 0.0,
    n_joint_error: int = 200,
    batch_size: int = 512,
    progress: bool = True,
) -> dict[str, Tensor]:
    """Decode from the states ``tokens`` [N, L] and measure the outcome; stored.

    Args:
        settings: what tells this decoder from another (its name, budget, source of its matrix); the key of the result.
        judge: from decoded tokens [N, L] to what is kept of each sequence (``{name: [N, …]}``).
        inputs: what the key covers beside the backbone and the decoder's head, if not ``tokens``.
        n_joint_error: number of leading sequences on which the joint error of the steps is measured.

    Returns:
        For each sequence what ``judge`` says, ``passes``, ``matrix_passes``, ``steps``; for each parallel step of the
        first sequences ``joint_error``, ``joint_members``, ``joint_left``, ``joint_spent``, ``joint_sequence``,
        ``joint_step``; and scalars ``batched_calls``, ``seconds``.
    """

    def make() -> dict[str, Tensor]:
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
        first = result.trace.first(n_joint_error)
        error = joint_error(backbone.model, tokens[:n_joint_error], first)
        return dict(judge(result.tokens)) | {
            "passes": result.passes,
            "matrix_passes": result.matrix_passes,
            "steps": result.steps,
            "batched_calls": torch.tensor(result.batched_calls),
            "seconds": torch.tensor(result.seconds, dtype=torch.float64),
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
        inputs=backbone.identity | dict(inputs or {"tokens": tokens}) | {"head": head_of(decoder)},
        # Not the whole package: another decoder's code is none of this one's business.
        code=["maskmi.decoding.loop", "maskmi.decoding.joint_error", *modules_of(decoder)],
    )


def head_of(decoder: Decoder) -> str:
    """SHA-256 of the weights of the head that a decoder reads."""
    head = getattr(getattr(decoder, "pairwise", None), "head", None)
    return "none" if head is None else tensor_sha256(head.state_dict())


def modules_of(decoder: Decoder) -> list[str]:
    """Modules of a decoder, the one within it, its matrix's source and the head that this reads."""
    source = getattr(decoder, "pairwise", None)
    parts = [decoder, getattr(decoder, "inner", None), source, getattr(source, "head", None)]
    return sorted({type(part).__module__ for part in parts if part is not None})


def run_sweep(
    backbone: Backbone,
    store: Artefacts,
    sweep: Iterable[tuple[dict[str, Any], Decoder]],
    tokens: Tensor,
    *,
    name: str,
    temperature: float = 0.0,
    progress: bool = True,
    **options: Any,
) -> Results:
    """``(settings, outcome)`` of each decoder of a sweep from the same states; see :func:`decoded`.

    ``name`` (of the set of states) and a temperature above 0 are added to the settings.
    """
    results = []
    bar = tqdm(list(sweep), desc=name, unit="setting", disable=not progress)
    for settings, decoder in bar:
        settings = settings | {"test_set": name} | ({"temperature": temperature} if temperature else {})
        bar.set_postfix_str(settings["decoder"])
        outcome = decoded(
            backbone, store, tokens, decoder, settings, temperature=temperature, progress=False, **options
        )
        results.append((settings, outcome))
    return results


def decoding_row(
    outcome: Mapping[str, Tensor], settings: Mapping[str, Any], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """A decoding row of the statistics file from the outcome of :func:`decoded` and a study's own metrics."""
    n = len(outcome["passes"])
    row = {
        "decoder": settings["decoder"],
        "settings": {key: value for key, value in settings.items() if key not in ("decoder", "test_set")},
        "test_set": settings["test_set"],
        "n": n,
        "passes": outcome["passes"].double().mean().item(),
        "steps": outcome["steps"].double().mean().item(),
        "batched_calls": int(outcome["batched_calls"]),
        "seconds_per_sequence": outcome["seconds"].item() / n,
        "metrics": dict(metrics),
    }
    if outcome["matrix_passes"].any():
        row["matrix_passes"] = outcome["matrix_passes"].double().mean().item()
    if outcome["joint_error"].isfinite().any():
        errors = outcome["joint_error"]
        row["joint_error_nats"] = errors[errors.isfinite()].mean().item()
    return row
