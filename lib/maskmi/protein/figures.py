"""Figures of proteins: training, MI maps, the steps of decoding, contacts, quality against variety.

Matrices over pairs of residues are [L, L]. Positions are counted from 1, as in sequence files.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from maskmi.figures import CYCLE, INK, OTHER, colour_of, each_curve, panels, style

VISIBLE = "#E4E4E4"
HEAT = sns.color_palette("rocket_r", as_cmap=True)
CONTACT = ListedColormap(["white", "#4D4D4D"])


def training_curve(log: pd.DataFrame) -> Figure:
    """Losses of a training run, and that of held-out sequences by how much of them is masked, both in nats a residue.

    Args:
        log: of :func:`maskmi.protein.pretrain.train`: shown, loss, validation_loss, validation_loss_by_mask_ratio (a
            list of the losses at mask ratios in bins of equal width from 0 to 1; None where nothing was masked).
    """
    missing = [
        name for name in ("shown", "loss", "validation_loss", "validation_loss_by_mask_ratio") if name not in log
    ]
    if missing or not len(log):
        raise ValueError(f"a training log needs rows of shown, losses: it lacks {', '.join(missing) or 'rows'}")
    by_ratio = np.array(log["validation_loss_by_mask_ratio"].tolist(), dtype=float)
    edges = np.linspace(0, 100, by_ratio.shape[1] + 1)
    with style():
        figure, ((left, right),) = panels(1, 2, (8, 3.2), sharex=True, sharey=True)
        shown, marker = log["shown"] / 1000, "." if len(log) <= 40 else None
        left.plot(shown, log["loss"], color="#0072B2", marker=marker, label="training batches")
        left.plot(shown, log["validation_loss"], color="#D55E00", marker=marker, label="held-out sequences")
        for low, high, losses, colour in zip(
            edges, edges[1:], by_ratio.T, sns.color_palette("viridis", len(edges) - 1), strict=False
        ):
            right.plot(shown, losses, color=colour, marker=marker, label=f"{low:.0f}–{high:.0f} % masked")
        for axes in (left, right):
            axes.set(xlabel="sequences shown (thousands)")
            axes.axhline(
                np.log(20), color=OTHER, lw=1, ls=(0, (4, 3)), label="no idea, log 20" if axes is left else None
            )
        left.set(ylabel="cross-entropy (nats a masked residue)")
        left.legend()
        right.legend(title="held-out sequences", fontsize="small")
    return figure


def mi_maps(matrices: Mapping[str, ArrayLike], masked: ArrayLike, unit: str = "mutual information (nats)") -> Figure:
    """Matrices over all pairs of residues on one colour scale, with the rows and columns of visible residues grey.

    Colours follow the square root of the value; negative values have the colour of zero.

    Args:
        matrices: up to three, by title.
        masked: bool [L].
    """
    masked = np.asarray(masked, dtype=bool)
    pairs = np.logical_and.outer(masked, masked) & ~np.eye(len(masked), dtype=bool)
    if not matrices or not pairs.any():
        raise ValueError("an MI map needs a matrix, and a sequence with at least two masked residues")
    arrays = {name: _square(matrix, len(masked)) for name, matrix in matrices.items()}
    top = max(array[pairs].max() for array in arrays.values())
    norm = PowerNorm(0.5, 0, max(top, 1e-6), clip=True)
    with style():
        figure, grid = panels(1, len(arrays), (8, 8 / len(arrays) + 1), sharey=True, layout="compressed")
        for axes, (name, array) in zip(grid[0], arrays.items(), strict=True):
            shown = np.ma.array(array, mask=~pairs)
            image = axes.imshow(shown, cmap=HEAT.with_extremes(bad=VISIBLE), norm=norm, interpolation="nearest")
            _residues(axes, len(masked), name)
        grid[0, 0].set_ylabel("residue")
        bar = figure.colorbar(image, ax=grid, label=unit, location="bottom", shrink=0.6, aspect=40)
        bar.set_ticks([0, *(tick for tick in (0.01, 0.05, 0.2, 0.5, 1, 2) if top / 60 < tick <= top)])
    return figure


def writing_steps(runs: Mapping[str, tuple[str, ArrayLike]]) -> Figure:
    """In which step each residue was written: a row a decoder, its sequence in letters, dark where it came late.

    Args:
        runs: by title the sequence and the step of each of its residues [L], counted from 0; NaN where it was given.
    """
    length = max((len(sequence) for sequence, _ in runs.values()), default=0)
    if not length:
        raise ValueError("a figure of the writing needs at least one sequence")
    shares = np.full((len(runs), length), np.nan)
    for row, (name, (sequence, steps)) in zip(shares, runs.items(), strict=True):
        steps = np.asarray(steps, dtype=float)
        if steps.shape != (len(sequence),):
            raise ValueError(f"{name} has {len(sequence)} residues and the steps of {steps.size}: give one for each")
        row[: len(steps)] = steps / max(1.0, np.nanmax(steps)) if np.isfinite(steps).any() else np.nan
    with style():
        figure, ((axes,),) = panels(1, 1, (12, 1.1 + 0.32 * len(runs)))
        shown = np.ma.masked_invalid(shares)
        image = axes.imshow(shown, cmap=HEAT.with_extremes(bad=VISIBLE), vmin=0, vmax=1, aspect="auto")
        for k, (sequence, _) in enumerate(runs.values()):
            for i, letter in enumerate(sequence):
                dark = np.nan_to_num(shares[k, i]) > 0.55
                axes.text(i, k, letter, ha="center", va="center", fontsize=6, color="white" if dark else INK)
        axes.set_yticks(range(len(runs)), runs)
        _residue_ticks(axes.set_xticks, length)
        axes.set_xlabel("residue")
        axes.grid(False)
        bar = figure.colorbar(image, ax=axes, label="step", fraction=0.02, pad=0.01)
        bar.set_ticks([0, 1], labels=["first", "last"])
    return figure


def contact_maps(scores: Mapping[str, ArrayLike], contact: ArrayLike, resolved: ArrayLike) -> Figure:
    """Above the diagonal scores, as ranks among all pairs (dark: high); below it the contacts of the structure.

    Args:
        scores: up to three matrices, by title; NaN where a pair was not measured.
        contact, resolved: bool [L, L], pairs in contact, and those whose distance the structure knows.
    """
    contact, resolved = np.asarray(contact, dtype=bool), np.asarray(resolved, dtype=bool)
    length = len(contact)
    upper = np.triu(np.ones((length, length), dtype=bool), 1)
    with style():
        figure, grid = panels(1, len(scores), (8, 8 / len(scores) + 0.4), sharey=True, layout="compressed")
        for axes, (name, matrix) in zip(grid[0], scores.items(), strict=True):
            array = _square(matrix, length)
            known = upper & np.isfinite(array)
            rank = np.full(array.shape, np.nan)
            rank[known] = array[known].argsort().argsort() / max(1, known.sum() - 1)
            axes.imshow(np.ma.masked_invalid(rank**8), cmap=HEAT.with_extremes(bad=(1, 1, 1, 0)), vmin=0, vmax=1)
            below = np.ma.array(contact, mask=upper | np.eye(length, dtype=bool) | ~resolved)
            axes.imshow(below, cmap=CONTACT.with_extremes(bad=(1, 1, 1, 0)), vmin=0, vmax=1, interpolation="nearest")
            axes.plot([-0.5, length - 0.5], [-0.5, length - 0.5], color=INK, lw=0.5)
            _residues(axes, length, name)
        grid[0, 0].set_ylabel("residue")
    return figure


def contact_precision(rows: pd.DataFrame) -> Figure:
    """Precision of the highest-scored pairs, a group of points for each cut; rows: method, cut, value, low, high.

    The method ``chance`` is a dashed line.
    """
    methods = [method for method in dict.fromkeys(rows["method"]) if method != "chance"]
    cuts, chance = list(dict.fromkeys(rows["cut"])), rows.loc[rows["method"] == "chance", "value"]
    with style():
        figure, ((axes,),) = panels(1, 1, (6.4, 3.8))
        for k, method in enumerate(methods):
            part = rows[rows["method"] == method].set_index("cut").loc[cuts]
            place = np.arange(len(cuts)) + (k - (len(methods) - 1) / 2) * 0.8 / len(methods)
            error = np.clip([part["value"] - part["low"], part["high"] - part["value"]], 0, None)
            axes.errorbar(place, part["value"], yerr=error, fmt="o", color=CYCLE[k % len(CYCLE)], label=method)
        if len(chance):
            axes.axhline(chance.iloc[0], color=INK, lw=1, ls=(0, (4, 3)), label="chance")
        axes.set_xticks(np.arange(len(cuts)), cuts)
        axes.set(xlabel="pairs taken, of a chain of L residues", ylabel="share in contact (precision)")
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside right upper")
    return figure


def quality_against_variety(
    rows: pd.DataFrame, xlabel: str, ylabel: str, natural: tuple[float, float] | None = None
) -> Figure:
    """Quality, variety and cost on one plot: a point a setting, with its passes beside it; a line joins a decoder's.

    Args:
        rows: family, label (the curve), passes, variety, value, low, high.
        natural: variety and value of natural sequences, drawn as a star.
    """
    with style():
        figure, ((axes,),) = panels(1, 1, (7.2, 4.8))
        for (family, label), curve, line in each_curve(rows):
            curve, colour = curve.sort_values("passes"), colour_of(family)
            error = np.clip([curve["value"] - curve["low"], curve["high"] - curve["value"]], 0, None)
            axes.errorbar(
                curve["variety"], curve["value"], yerr=error, fmt="none", color=colour, elinewidth=0.6, alpha=0.5
            )
            paint = {"color": colour, "ls": line, "marker": "o", "mfc": colour if line == "-" else "white"}
            axes.plot(curve["variety"], curve["value"], lw=1, label=label, **paint)
            for _, row in curve.iterrows():
                place = (row["variety"], row["value"])
                text = {"textcoords": "offset points", "fontsize": "x-small", "color": colour}
                axes.annotate(f"{row['passes']:.0f}", place, (4, 3), **text)
        if natural is not None:
            axes.plot(*natural, ls="", marker="*", ms=12, color=INK, label="natural")
        axes.plot([], [], " ", label="numbers: passes")
        axes.set(xlabel=xlabel, ylabel=ylabel)
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _residues(axes: Axes, length: int, title: str) -> None:
    _residue_ticks(axes.set_xticks, length)
    _residue_ticks(axes.set_yticks, length)
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("residue")
    axes.grid(False)
    axes.spines[:].set_visible(True)


def _residue_ticks(set_ticks: Callable, length: int) -> None:
    step = next(s for s in (5, 10, 20, 50, 100) if length / s <= 7 or s == 100)
    ticks = np.arange(step, length + 1, step)
    set_ticks(ticks - 1, ticks, fontsize="small")


def _square(matrix: ArrayLike, length: int) -> np.ndarray:
    array = np.asarray(matrix, dtype=float)
    if array.shape != (length, length):
        raise ValueError(f"a matrix over {length} residues is [{length}, {length}], not {list(array.shape)}")
    return array
