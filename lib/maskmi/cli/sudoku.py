"""``maskmi sudoku``: decode puzzles, and the mutual information of one."""

import json
from typing import Any

import click

from maskmi.cli.options import (
    decoder_of,
    decoding_options,
    input_file,
    map_options,
    open_text,
    some_left,
    write_map,
)

SOLUTIONS = ("none", "one", "several")
FILE = input_file("[FILE]")
BACKBONE = click.option(
    "--backbone",
    type=click.Choice(["strong", "paper_strength"]),
    default="strong",
    show_default=True,
    help="The shipped model.",
)


@click.group()
def sudoku() -> None:
    """Sudoku by a masked diffusion model."""


@sudoku.command()
@FILE
@BACKBONE
@decoding_options("mi", temperature=0.0)
@click.option("--skip-invalid", is_flag=True, help="Leave out puzzles that are refused, and list them.")
@click.option("--grid", is_flag=True, help="Draw the grids instead of JSON lines.")
def decode(
    source: str,
    backbone: str,
    decoder: str,
    alpha: float,
    lam: float,
    order: str,
    seed: int,
    quiet: bool,
    temperature: float,
    skip_invalid: bool,
    grid: bool,
) -> None:
    """Fill in the puzzles of FILE, or of the standard input: one a line, CSV with a column "puzzle", or one drawn.

    Blanks are . 0 _ or *. Writes a JSON object a puzzle: its line, the puzzle, the grid, whether that is valid and
    keeps the givens, how many solutions the puzzle has (one, several or none), passes and steps.
    """
    import torch

    from maskmi.decoding import decode as run
    from maskmi.sudoku.grid import is_valid_solution
    from maskmi.sudoku.solver import count_solutions
    from maskmi.sudoku.text import format_grid, format_line, read_puzzles

    found = read_puzzles(open_text(source), skip_invalid=skip_invalid)
    some_left(found.puzzles, found.skipped, "puzzle")
    model, head = _load(backbone)
    result = run(
        model.model,
        torch.from_numpy(found.puzzles).long(),
        decoder_of(decoder, head, alpha=alpha, lam=lam, order=order),
        seed=seed,
        temperature=temperature,
        progress=not quiet,
    )
    grids = result.tokens.numpy().astype("uint8")
    valid, solutions = is_valid_solution(grids, found.puzzles), count_solutions(found.puzzles)
    for i, line in enumerate(found.lines):
        if grid:
            state = "valid" if valid[i] else "not valid"
            click.echo(f"# line {line}: {state}, {int(result.passes[i])} passes\n{format_grid(grids[i])}\n")
            continue
        row = {"line": line, "puzzle": format_line(found.puzzles[i]), "grid": format_line(grids[i])}
        row |= {"valid": bool(valid[i]), "solutions": SOLUTIONS[solutions[i]]}
        click.echo(json.dumps(row | {"passes": int(result.passes[i]), "steps": int(result.steps[i])}))


@sudoku.command("map")
@FILE
@BACKBONE
@map_options
def show_map(source: str, backbone: str, **options: Any) -> None:
    """Mutual information (nats) of the blank cells of the puzzle in FILE, or in the standard input.

    Writes a JSON object a pair of cells, by falling information.
    """
    import torch

    from maskmi.sudoku.mdm import MASK
    from maskmi.sudoku.text import read_puzzles

    puzzles = read_puzzles(open_text(source)).puzzles
    if len(puzzles) > 1:
        raise ValueError(f"a map is of one puzzle, not of {len(puzzles)}")
    tokens = torch.from_numpy(puzzles).long()
    masked = tokens == MASK
    if masked.sum() < 2:
        raise ValueError(f"a map needs two blanks or more, the puzzle has {int(masked.sum())}")
    model, head = _load(backbone)
    title = "probed" if options["probe"] else "head"

    def draw(matrix: Any) -> Any:
        from maskmi.sudoku.figures import mi_maps

        return mi_maps({title: matrix}, puzzles[0])

    write_map(model.model, tokens, masked, head, names=_cell, draw=draw, **options)


def _cell(index: int) -> str:
    return f"r{index // 9 + 1}c{index % 9 + 1}"


def _load(backbone: str) -> tuple[Any, Any]:
    """A backbone, and a callable that gives its shipped head."""
    from maskmi.study import load_head
    from maskmi.sudoku.study import BACKBONES, load_backbone

    loaded = load_backbone({name: study for study, name in BACKBONES.items()}[backbone])
    return loaded, lambda: load_head(loaded)
