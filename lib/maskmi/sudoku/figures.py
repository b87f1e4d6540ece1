"""Figures on the Sudoku board: MI maps, partners of a cell, MI by relation, puzzles decoded step by step.

Grids are arrays [81] of digits 0 to 8, ``MASK`` (9) where blank; matrices over pairs of cells are [81, 81], in nats.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from maskmi.figures import INK, nats_axis, panels, style
from maskmi.sudoku.grid import relations
from maskmi.sudoku.solver import MASK

VISIBLE = "#E4E4E4"  # cells that hold a digit, where MI is not defined
WRONG = "#C1121F"
HEAT = sns.color_palette("rocket_r", as_cmap=True)
STEPS = ListedColormap(0.42 + 0.58 * np.array(sns.color_palette("viridis_r", 256))[:200])  # pale, under dark digits
KINDS = {"row": "#0072B2", "column": "#56B4E9", "box": "#009E73", "several units": "#D55E00", "no unit": "#888888"}


def mi_maps(matrices: Mapping[str, ArrayLike], puzzle: ArrayLike, relation_mask: bool = True) -> Figure:
    """Matrices [81, 81] over all pairs of cells, on one colour scale, with the rows and columns of visible cells grey.

    With ``relation_mask``, a last panel shows which pairs share a unit, at the scale's upper end. Colours follow the
    square root of the value; negative values, an artefact of inconsistent conditionals, have the colour of zero.
    """
    puzzle = _board(puzzle)
    matrices = {name: _matrix(matrix) for name, matrix in matrices.items()}
    pairs = np.logical_and.outer(puzzle == MASK, puzzle == MASK) & ~np.eye(81, dtype=bool)
    if not pairs.any() or not matrices:
        raise ValueError("an MI map needs a matrix, and a puzzle with at least two blanks")
    norm = _scale([matrix[pairs] for matrix in matrices.values()])
    if relation_mask:
        matrices["same row, column or box"] = relations().any(-1) * norm.vmax
    columns = len(matrices) if len(matrices) <= 3 else 2 if len(matrices) == 4 else 3
    lines = -(-len(matrices) // columns)
    with style():
        height = lines * (7.6 if lines == 1 else 6.6) / columns + (1.15 if lines == 1 else 0.5)
        figure, grid = panels(lines, columns, (8, height), sharex=True, sharey=True, layout="compressed")
        for axes, (name, matrix) in zip(grid.flat, matrices.items(), strict=False):
            colours = HEAT.with_extremes(bad=VISIBLE)
            image = axes.imshow(np.ma.array(matrix, mask=~pairs), cmap=colours, norm=norm, interpolation="nearest")
            for edge in np.arange(9, 81, 9) - 0.5:
                bold = {"color": INK, "lw": 0.9 if (edge + 0.5) % 27 == 0 else 0.3, "alpha": 0.7}
                axes.axhline(edge, **bold)
                axes.axvline(edge, **bold)
            axes.set_title(name, fontsize="medium")
            labels = [f"r{k}" for k in range(1, 10)]
            axes.set_xticks(np.arange(4, 81, 9), labels, fontsize="small")
            axes.set_yticks(np.arange(4, 81, 9), labels, fontsize="small")
            axes.tick_params(length=0)
            axes.grid(False)
            axes.spines[:].set_visible(True)
        for axes in list(grid.flat)[len(matrices) :]:
            axes.set_visible(False)
        _colourbar(figure, image, grid, "mutual information (nats)", horizontal=lines == 1)
    return figure


def partners(matrix: ArrayLike, puzzle: ArrayLike, cells: Sequence[int]) -> Figure:
    """For each chosen blank cell (0 to 80) the board, each blank coloured by its MI with that cell.

    The chosen cell is framed, its row, column and box have a dashed outline, and givens are printed on grey.
    """
    puzzle, matrix, cells = _board(puzzle), _matrix(matrix), list(cells)
    wrong = [cell for cell in cells if not 0 <= cell < 81 or puzzle[cell] != MASK]
    if wrong or not cells:
        raise ValueError(f"partners are shown of blank cells, 0 to 80, not of {wrong or 'none'}")
    others = {cell: (puzzle == MASK) & (np.arange(81) != cell) for cell in cells}
    norm = _scale([matrix[cell, other] for cell, other in others.items()])
    columns = min(len(cells), 3)
    lines = -(-len(cells) // columns)
    with style():
        size = (8 if columns > 1 else 5, lines * (7.8 if columns > 1 else 4.6) / columns + 1.1)
        figure, grid = panels(lines, columns, size, layout="compressed")
        for axes, cell in zip(grid.flat, cells, strict=False):
            row, column = divmod(cell, 9)
            paint = HEAT(norm(matrix[cell]))
            paint[~others[cell]] = plt.matplotlib.colors.to_rgba(VISIBLE)
            paint[cell] = (1, 1, 1, 1)
            _draw_board(axes, puzzle, paint, coordinates=True)
            outline = {"fill": False, "ec": "#0072B2", "ls": (0, (3, 2)), "lw": 1.4, "zorder": 4}
            box = (column // 3 * 3 - 0.5, row // 3 * 3 - 0.5)
            for corner, width, height in (((-0.5, row - 0.5), 9, 1), ((column - 0.5, -0.5), 1, 9), (box, 3, 3)):
                axes.add_patch(Rectangle(corner, width, height, **outline))
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec="#0072B2", lw=2.8, zorder=5))
            axes.set_title(f"partners of r{row + 1}c{column + 1}", fontsize="medium")
        for axes in list(grid.flat)[len(cells) :]:
            axes.set_visible(False)
        image = plt.cm.ScalarMappable(norm, HEAT)
        _colourbar(figure, image, grid, "mutual information with the framed cell (nats)", horizontal=True)
    return figure


def mi_by_relation(values: Mapping[str, ArrayLike], auroc: Mapping[str, float]) -> Figure:
    """How MI (nats) is spread over pairs of each relation, and how well it tells each relation from the other pairs.

    ``values`` maps the kinds of :data:`KINDS` to arrays [n]; ``auroc`` some of them to the area under the ROC curve.
    """
    arrays = {kind: np.asarray(values[kind], float).ravel() for kind in KINDS if kind in values}
    unknown = (set(values) | set(auroc)) - set(KINDS)
    if unknown or not any(len(array) for array in arrays.values()):
        raise ValueError(f"relations are {', '.join(KINDS)}, at least one with values, not {sorted(unknown) or 'none'}")
    kinds = [kind for kind in KINDS if kind in arrays or kind in auroc]
    with style():
        figure, ((left, right),) = panels(1, 2, (8, 3.4), width_ratios=(3, 2))
        for kind, array in arrays.items():
            if len(array):
                share = np.linspace(0, 1, min(len(array), 1001))  # millions of pairs need no more
                left.plot(np.quantile(array, share), share, color=KINDS[kind], label=f"{kind} ({len(array):,} pairs)")
        nats_axis(left, "x", np.concatenate(list(arrays.values())), 1e-3)
        left.set(xlabel="mutual information (nats)", ylabel="share of pairs with at most this")
        left.set_ylim(0, 1.01)
        shown = [kind for kind in kinds if kind in auroc]
        bars = right.barh(shown, [auroc[kind] - 0.5 for kind in shown], left=0.5, height=0.62)
        for bar, kind in zip(bars, shown, strict=True):
            bar.set_color(KINDS[kind])
            # Beside the bar where it ends, or right of the line of chance if it runs to the left.
            right.text(max(auroc[kind], 0.5) + 0.01, bar.get_y() + 0.31, f"{auroc[kind]:.3f}", va="center")
        right.axvline(0.5, color=INK, lw=1)
        right.invert_yaxis()
        right.set_xlim(min(0.5, *auroc.values(), 0.5) - 0.02, 1.12)
        ticks = np.linspace(0, 1, 5) if right.get_xlim()[0] < 0.4 else np.linspace(0.4, 1, 7)
        right.set_xticks(ticks[ticks >= right.get_xlim()[0]])
        right.set(xlabel="AUROC of MI (0.5: chance)")
        right.grid(False, axis="y")
        right.tick_params(axis="y", length=0)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def decoding_steps(
    puzzle: ArrayLike,
    solution: ArrayLike,
    runs: Mapping[str, pd.DataFrame],
    passes: Mapping[str, int] | None = None,
    snapshots: int = 8,
) -> Figure:
    """One puzzle under several decoders: a row each, the final grid and the board after each of the first few steps.

    Cells have the colour and, small, the number of the step (counted from 1) that committed them, wrong digits are red
    and framed. Snapshots frame what their step committed.

    Args:
        runs: for each decoder the commitments: step (from 0), position, value. Of a position that was committed more
            than once, the last counts.
        passes: network evaluations of each decoder, if they differ from its steps.
        snapshots: how many steps are shown.
    """
    puzzle, solution = _board(puzzle), _board(solution)
    if not runs:
        raise ValueError("decoding_steps needs the trace of at least one decoder")
    with style():
        figure = plt.figure(figsize=(8, 0.7 + 3 * len(runs)), layout="compressed")
        plt.close(figure)
        across = -(-snapshots // 2)
        grid = figure.add_gridspec(2 * len(runs), 2 + across)
        for line, (name, run) in enumerate(runs.items()):
            if run.empty:
                raise ValueError(f"{name} committed nothing: leave it out")
            run = run.sort_values("step", kind="stable")
            steps = int(run["step"].max()) + 1
            axes = figure.add_subplot(grid[2 * line : 2 * line + 2, :2])
            final = _commit_board(axes, puzzle, solution, run, steps, numbers=True)
            wrong = int(((final != solution) & (puzzle == MASK) & (final != MASK)).sum())
            count = passes[name] if passes else steps
            facts = f"{_counted(steps, 'step')}, {_counted(count, 'pass', 'es')}, {wrong or 'none'} wrong"
            axes.set_title(name, fontsize="medium", fontweight="bold")
            axes.set_xlabel(facts)
            for step in range(min(snapshots, steps)):
                axes = figure.add_subplot(grid[2 * line + step // across, 2 + step % across])
                before = run[run["step"] <= step]
                _commit_board(axes, puzzle, solution, before, steps, numbers=False, framed=step)
                axes.set_title(f"step {step + 1}: +{int((run['step'] == step).sum())}", fontsize="small", pad=3)
        image = plt.cm.ScalarMappable(Normalize(0, 1), STEPS)
        bar = _colourbar(figure, image, np.array(figure.axes), "step that committed the cell", horizontal=True)
        bar.set_ticks([0, 1], labels=["first", "last"])
    return figure


def _commit_board(axes, puzzle, solution, run, steps, numbers, framed=None) -> np.ndarray:
    """Draw the board after the commitments of ``run``, and return it."""
    board, step_of = puzzle.copy(), np.full(81, -1)
    board[run["position"]] = run["value"]
    step_of[run["position"]] = run["step"]
    filled = step_of >= 0
    paint = np.ones((81, 4))
    paint[puzzle != MASK] = plt.matplotlib.colors.to_rgba(VISIBLE)
    paint[filled] = STEPS(step_of[filled] / max(steps - 1, 1))
    wrong = filled & (board != solution)
    _draw_board(axes, board, paint, givens=puzzle != MASK, wrong=wrong, size=8.5 if numbers else 5.5)
    for cell in np.flatnonzero(filled):
        row, column = divmod(cell, 9)
        if numbers:
            small = {"fontsize": 4.2, "ha": "right", "va": "bottom", "color": INK}
            axes.text(column + 0.46, row + 0.46, str(step_of[cell] + 1), **small)
        if step_of[cell] == framed or (wrong[cell] and numbers):
            colour = WRONG if wrong[cell] else INK
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=colour, lw=1.2, zorder=5))
    return board


def _draw_board(axes: Axes, board, paint, givens=None, wrong=None, size=9.0, coordinates=False) -> None:
    """Nine by nine cells in the colours ``paint`` [81, 4], digits printed, box borders bold."""
    axes.imshow(paint.reshape(9, 9, 4), interpolation="nearest")
    edges = np.arange(10) - 0.5
    for lines, width in ((edges, 0.35), (edges[::3], 1.2)):
        rule = {"colors": INK, "linewidths": width, "zorder": 3, "clip_on": False}
        axes.vlines(lines, -0.5, 8.5, **rule)
        axes.hlines(lines, -0.5, 8.5, **rule)
    axes.set(xlim=(-0.5, 8.5), ylim=(8.5, -0.5))
    for cell in np.flatnonzero(board != MASK):
        colour = WRONG if wrong is not None and wrong[cell] else INK
        bold = "bold" if colour == WRONG or (givens is not None and givens[cell]) else "normal"
        row, column = divmod(cell, 9)
        text = {"ha": "center", "va": "center_baseline", "fontsize": size, "color": colour, "fontweight": bold}
        axes.text(column, row, str(board[cell] + 1), **text)
    axes.set_xticks(range(9), [f"c{k}" for k in range(1, 10)] if coordinates else [""] * 9, fontsize="small")
    axes.set_yticks(range(9), [f"r{k}" for k in range(1, 10)] if coordinates else [""] * 9, fontsize="small")
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def _colourbar(figure: Figure, image, grid: np.ndarray, label: str, horizontal: bool):
    where = {"location": "bottom", "shrink": 0.5, "aspect": 35} if horizontal else {"location": "right", "shrink": 0.7}
    bar = figure.colorbar(image, ax=list(grid.flat), label=label, **where)
    if isinstance(image.norm, PowerNorm):  # round values, as many as the square root leaves room for
        ticks, top = [0.0], image.norm.vmax
        for tick in (m * 10.0**e for e in range(-4, 2) for m in (1, 2, 5)):
            if tick <= top and np.sqrt(tick / top) - np.sqrt(ticks[-1] / top) > 0.11:
                ticks.append(tick)
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.outline.set_linewidth(0.5)
    return bar


def _scale(values: Sequence[np.ndarray]) -> PowerNorm:
    top = max(float(part.max()) if part.size else 0.0 for part in values)
    return PowerNorm(0.5, vmin=0.0, vmax=max(top, 1e-6), clip=True)


def _counted(n: int, noun: str, plural: str = "s") -> str:
    return f"{n} {noun}{plural if n != 1 else ''}"


def _board(cells: ArrayLike) -> np.ndarray:
    cells = np.asarray(cells)
    if cells.shape != (81,) or not np.isin(cells, range(10)).all():
        raise ValueError(f"a grid has 81 cells of 0 to 9, this array has the shape {cells.shape}")
    return cells.astype(np.int64)


def _matrix(matrix: ArrayLike) -> np.ndarray:
    matrix = np.asarray(matrix, float)
    if matrix.shape != (81, 81):
        raise ValueError(f"a matrix over pairs of cells is [81, 81], this one has the shape {matrix.shape}")
    return matrix
