"""Probing many contexts: one stored result a shard, so that an interrupted run goes on and machines can share work."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from maskmi.artefacts import Artefacts
from maskmi.model import MaskedModel
from maskmi.probing import MATRICES, Probes, probe


def probe_shards(
    model: MaskedModel,
    tokens: Tensor,
    artefacts: Artefacts,
    *,
    inputs: Mapping[str, str | Tensor],
    parameters: Mapping[str, Any] | None = None,
    name: str = "probes",
    rows: Tensor | None = None,
    tolerance: float = 0.0,
    jacobian: bool = False,
    batch_size: int = 1024,
    shard_size: int = 64,
    shards: Iterable[int] | None = None,
    matrices: Sequence[str] = MATRICES,
    progress: bool = True,
) -> Probes:
    """Probe ``tokens [N, L]``, or read what was probed before; shard ``s`` starts at context ``s * shard_size``.

    A shard's key covers its tokens and rows, the options of ``probe`` (not ``batch_size``), ``inputs``, ``parameters``
    and the code of probing and of the model (where it belongs to this package). Other options and errors as in
    ``probe``.

    Args:
        inputs: what the model came from, e.g. ``{"backbone": sha256 of its checkpoint}``.
        parameters: what else changes the numbers, e.g. ``{"dtype": "bfloat16"}``; JSON values.
        shards: which shards to probe and return (default: all), e.g. ``range(0, 40)`` on one machine of two.
        matrices: which matrices to return; the others are stored all the same and are ``None`` in the result.

    Returns:
        The probes of the chosen shards, concatenated, on the CPU. Only measured entries take space on disk.
    """
    starts = range(0, len(tokens), shard_size)
    chosen = range(len(starts)) if shards is None else list(shards)
    if not inputs:
        raise ValueError("inputs must name what the model came from, such as the SHA-256 of its checkpoint")
    if not chosen or min(chosen) < 0 or max(chosen) >= len(starts):
        raise ValueError(f"shards must be numbers from 0 to {len(starts) - 1}, at least one")
    unknown = set(matrices) - set(MATRICES)
    if unknown:
        raise ValueError(f"there is no matrix {sorted(unknown)[0]!r}: choose among {', '.join(MATRICES)}")
    module = type(model).__module__
    code = ["maskmi.probing"] + ([module] if module.startswith("maskmi.") else [])
    options = {"tolerance": tolerance, "jacobian": jacobian, "model": dict(parameters or {})}

    pieces: list[Probes] = []
    made = 0
    total = sum(min(shard_size, len(tokens) - starts[shard]) for shard in chosen)
    with tqdm(total=total, unit="context", disable=not progress, desc=name) as bar:
        for shard in chosen:
            part = slice(starts[shard], starts[shard] + shard_size)
            part_tokens, part_rows = tokens[part].long(), None if rows is None else rows[part]

            def make(part_tokens: Tensor = part_tokens, part_rows: Tensor | None = part_rows) -> dict[str, Tensor]:
                nonlocal made
                how = {"tolerance": tolerance, "jacobian": jacobian, "batch_size": batch_size}
                probes = probe(model, part_tokens, rows=part_rows, **how)
                made += int(probes.passes.sum())
                return _pack(probes)

            contents = {"tokens": part_tokens} if rows is None else {"tokens": part_tokens, "rows": part_rows}
            stored = artefacts.get_or_make(name, make, parameters=options, inputs={**inputs, **contents}, code=code)
            pieces.append(_unpack(stored, matrices))
            bar.update(len(part_tokens))
            elapsed = bar.format_dict["elapsed"]
            bar.set_postfix_str(f"{made / elapsed:.0f} passes/s" if made and elapsed else "stored")
    columns = {field.name: [getattr(piece, field.name) for piece in pieces] for field in fields(Probes)}
    return Probes(**{k: None if parts[0] is None else torch.cat(parts) for k, parts in columns.items()})


def _pack(probes: Probes) -> dict[str, Tensor]:
    """Tensors to store: of the matrices, the measured entries in one flat vector."""
    tensors = {field.name: getattr(probes, field.name) for field in fields(Probes)}
    defined = probes.defined
    return {k: v[defined] if k in MATRICES else v for k, v in tensors.items() if v is not None}


def _unpack(stored: Mapping[str, Tensor], matrices: Sequence[str]) -> Probes:
    tensors: dict[str, Tensor | None] = {k: v for k, v in stored.items() if k not in MATRICES}
    off_diagonal = ~torch.eye(stored["masked"].shape[1], dtype=torch.bool)
    defined = stored["probed"][:, :, None] & stored["masked"][:, None, :] & off_diagonal
    for name in MATRICES:
        if name not in stored or name not in matrices:
            tensors[name] = None
        else:
            whole = torch.zeros(defined.shape, dtype=stored[name].dtype)
            tensors[name] = whole.masked_scatter(defined, stored[name])
    return Probes(**tensors)
