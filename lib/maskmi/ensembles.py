"""Ensembles of two backbones (TIE) as one more decoder of a sweep, judged and stored like the others."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from maskmi.artefacts import Artefacts
from maskmi.decoding import decode_tie
from maskmi.settings import Setting
from maskmi.study import Backbone, Decoder, Judge, Results, modules_of


def ensembled(
    backbones: tuple[Backbone, Backbone],
    store: Artefacts,
    tokens: Tensor,
    decoder: Decoder,
    settings: Mapping[str, Any],
    *,
    judge: Judge,
    inputs: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    temperature: float = 0.0,
    batch_size: int = 512,
) -> dict[str, Tensor]:
    """Decode by :func:`maskmi.decoding.decode_tie`; the outcome is as of :func:`maskmi.study.decoded`, without errors.

    Args:
        decoder: that of both trajectories.
        settings: hold ``steps`` of a round and the ``score`` of a trajectory.

    Raises:
        ValueError: for a decoder that reads a head, which belongs to one of the two.
    """
    if getattr(getattr(decoder, "pairwise", None), "head", None) is not None:
        raise ValueError("a head belongs to one backbone: the decoder of an ensemble can't read one")
    first, second = backbones

    def make() -> dict[str, Tensor]:
        how = {"steps": settings["steps"], "score": settings["score"], "seed": seed, "temperature": temperature}
        run = decode_tie([first.model, second.model], tokens, decoder, batch_size=batch_size, **how)
        return dict(judge(run.tokens)) | {
            "passes": run.passes,
            "matrix_passes": run.matrix_passes,
            "steps": run.steps,
            "batched_calls": torch.tensor(run.batched_calls),
            "seconds": torch.tensor(run.seconds, dtype=torch.float64),
            "joint_error": torch.empty(0, dtype=torch.float64),  # there is no one trace
        }

    second_too = {f"second_{name}": value for name, value in second.identity.items()}
    return store.get_or_make(
        "ensembled",
        make,
        parameters={"settings": dict(settings), "seed": seed, "temperature": temperature},
        inputs=first.identity | second_too | dict(inputs or {"tokens": tokens}),
        code=["maskmi.decoding.tie", *modules_of(decoder)],
    )


def run_ensembles(
    backbones: tuple[Backbone, Backbone],
    store: Artefacts,
    sweep: Iterable[Setting],
    tokens: Tensor,
    *,
    name: str,
    **options: Any,
) -> Results:
    """``(settings, outcome)`` of each ensemble of a sweep, as :func:`maskmi.study.run_sweep` gives them of decoders."""
    results = []
    for settings, decoder in sweep:
        settings = settings | {"test_set": name}
        results.append((settings, ensembled(backbones, store, tokens, decoder, settings, **options)))
    return results
