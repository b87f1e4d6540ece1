"""``maskmi protein``: generate and infill sequences, and the mutual information of their masked residues."""

import json
import sys
import warnings
from functools import partial
from typing import Any

import click

from maskmi.cli.options import (
    Number,
    decoder_of,
    decoding_options,
    input_file,
    map_options,
    open_text,
    probed,
    seed_option,
    some_left,
    together,
    write_map,
)

_model_options = together(
    click.option("--model", type=click.Choice(["esmc_small", "antiberty", "esmc_300m"]), default="esmc_small",
                 show_default=True),
    click.option("--weights", type=click.Path(exists=True, resolve_path=True),
                 help="Weights of the model in another place than the usual one."),
)  # fmt: skip
FASTA = input_file("[FASTA]")
SKIP = click.option("--skip-invalid", is_flag=True, help="Leave out records that are refused, and list them.")


@click.group()
def protein() -> None:
    """Proteins by ESM-C and AntiBERTy. In FASTA files _ or <mask> is a residue to fill in."""


@protein.command()
@_model_options
@click.option("--number", "-n", default=10, show_default=True, type=click.IntRange(1), help="Of sequences.")
@click.option(
    "--length", type=click.IntRange(1), help="Residues of each; else as in the study: 50 to 100, or as heavy chains."
)
@decoding_options("sequential:random", temperature=1.0)
def generate(model: str, weights: str | None, number: int, length: int | None, seed: int, **options: Any) -> None:
    """Sequences from nothing, as FASTA with the passes that each one took."""
    import torch

    from maskmi.protein.fasta import Record
    from maskmi.protein.study import all_masked, starting_states

    backbone = _load(model, weights)
    states = starting_states(model, number, seed) if length is None else all_masked(torch.full((number,), length))
    records = [Record(f"sample{i}", "") for i in range(1, number + 1)]
    _decode(backbone, records, states, seed=seed, **options)


@protein.command()
@FASTA
@_model_options
@decoding_options("sequential:random", temperature=1.0)
@SKIP
def infill(source: str, model: str, weights: str | None, skip_invalid: bool, seed: int, **options: Any) -> None:
    """Fill in the masked residues of the records of FASTA, or of the standard input; the others are kept."""
    from maskmi.protein.fasta import to_tokens

    backbone = _load(model, weights)
    records = _records(source, backbone, skip_invalid)
    states = to_tokens([record.sequence for record in records], backbone.network.extra)
    _decode(backbone, records, states, seed=seed, **options)


@protein.command("map")
@FASTA
@_model_options
@map_options
def show_map(source: str, model: str, weights: str | None, **options: Any) -> None:
    """Mutual information (nats) of the masked residues of a FASTA with one record.

    Writes a JSON object a pair, by falling information; residues are counted from 1.
    """
    from maskmi.protein.adapter import MASK
    from maskmi.protein.fasta import to_tokens

    backbone = _load(model, weights)
    records = _records(source, backbone, skip_invalid=False)
    if len(records) > 1:
        raise ValueError(f"a map is of one record, not of {len(records)}: `maskmi protein probe` takes many")
    name, sequence, _ = records[0]
    tokens = to_tokens([sequence], backbone.network.extra)
    masked = tokens == MASK
    if masked.sum() < 2:
        raise ValueError(f"a map needs two masked residues or more, record {name!r} has {int(masked.sum())}")

    def draw(matrix: Any) -> Any:
        from maskmi.protein.figures import mi_maps

        return mi_maps({name: matrix}, masked[0].numpy())

    head = partial(_head, backbone)
    write_map(backbone.model, tokens, masked, head, names=lambda i: i + 1, draw=draw, **options)


@protein.command()
@FASTA
@_model_options
@click.option("--mask-ratio", default=0.5, show_default=True, type=Number(0, 1),
              help="Share of residues to mask at random in records without masks of their own.")  # fmt: skip
@click.option(
    "--tolerance",
    default=0.001,
    show_default=True,
    type=Number(0),
    help="Nats: bound on the error of skipping rare residues.",
)
@seed_option("what is masked")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@SKIP
def probe(
    source: str,
    model: str,
    weights: str | None,
    mask_ratio: float,
    tolerance: float,
    seed: int,
    quiet: bool,
    skip_invalid: bool,
) -> None:
    """Probe a model over the records of FASTA: hundreds of passes a record.

    Writes a JSON object a record: its name, the sequence as masked, the masked residues (counted from 1), the symmetric
    matrix of their mutual information in nats (the paper's estimator), and the passes. Where a model contradicts
    itself, that estimator is negative: a fifth of the values of small models are, most of them by
    little.
    """
    import torch

    from maskmi.noise import uniform
    from maskmi.protein.adapter import MASK, PADDING
    from maskmi.protein.fasta import to_sequences, to_tokens

    backbone = _load(model, weights)
    records = _records(source, backbone, skip_invalid)
    tokens = to_tokens([record.sequence for record in records], backbone.network.extra)
    level = uniform(seed, torch.arange(len(tokens))[:, None], torch.arange(tokens.shape[1]))
    own = (tokens == MASK).any(1, keepdim=True)
    tokens = torch.where(~own & (tokens != PADDING) & (level < mask_ratio), MASK, tokens)
    matrix, passes = probed(backbone.model, tokens, tolerance, progress=not quiet)
    for record, row, sequence, mi, spent in zip(
        records, tokens, to_sequences(tokens, backbone.network.extra), matrix, passes.tolist(), strict=True
    ):
        at = (row == MASK).nonzero().flatten()
        values = [[round(value, 6) for value in line] for line in mi[at][:, at].tolist()]
        line = {"name": record.name, "sequence": sequence, "masked": (at + 1).tolist(), "mi_nats": values}
        click.echo(json.dumps(line | {"passes": spent}))


def _load(model: str, weights: str | None) -> Any:
    from maskmi.protein.study import load_backbone

    if weights and model == "antiberty":
        raise click.BadParameter("antiberty comes with its package: --weights are for the other models")
    return load_backbone(model, checkpoint=weights or "shipped")


def _head(backbone: Any) -> Any:
    from maskmi.protein.sweep import LABEL
    from maskmi.study import load_head

    return load_head(backbone, LABEL)


def _records(source: str, backbone: Any, skip_invalid: bool) -> list[Any]:
    from maskmi.protein.fasta import read_fasta

    limit = getattr(backbone.network, "max_length", None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = read_fasta(
            open_text(source), backbone.network.extra, masks=True, max_length=limit, skip_invalid=skip_invalid
        )
    for warning in told:
        click.echo(str(warning.message), err=True)
    some_left(found.records, found.skipped, "record")
    return found.records


def _decode(
    backbone: Any,
    records: list[Any],
    states: Any,
    *,
    decoder: str,
    alpha: float,
    lam: float,
    order: str,
    seed: int,
    quiet: bool,
    temperature: float,
) -> None:
    """Decode and write as FASTA."""
    from maskmi.decoding import decode
    from maskmi.protein.fasta import Record, to_sequences, write_fasta

    rule = decoder_of(decoder, partial(_head, backbone), alpha=alpha, lam=lam, order=order)
    result = decode(backbone.model, states, rule, seed=seed, temperature=temperature, progress=not quiet)
    sequences = to_sequences(result.tokens, backbone.network.extra)
    write_fasta(
        sys.stdout,
        [
            Record(record.name, sequence, " ".join(filter(None, [record.description, f"passes={passes}"])))
            for record, sequence, passes in zip(records, sequences, result.passes.tolist(), strict=True)
        ],
    )
