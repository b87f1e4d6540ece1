"""Figures of proteins: training, MI maps, maps against contacts, precision at contacts, quality against variety.

Matrices over pairs of residues are [L, L]. Positions are counted from 1, as in sequence files.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from maskmi.figures import CYCLE, FAMILIES, INK, OTHER, colour_of, panels, style

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
        bar = figure.colorbar(image, ax=grid, label=unit, location="bottom", shrink=0.6, aspect=40)
        bar.set_ticks([0, *(tick for tick in (0.01, 0.05, 0.2, 0.5, 1, 2) if top / 60 < tick <= top)])
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
    return figure


def contact_precision(rows: pd.DataFrame) -> Figure:
    """Precision of the highest-scored pairs, a group of points for each cut; rows: method, cut, value, low, high."""
    methods = list(dict.fromkeys(rows["method"]))
    cuts = list(dict.fromkeys(rows["cut"]))
    with style():
        figure, ((axes,),) = panels(1, 1, (6.4, 3.8))
        for k, method in enumerate(methods):
            part = rows[rows["method"] == method].set_index("cut").loc[cuts]
            place = np.arange(len(cuts)) + (k - (len(methods) - 1) / 2) * 0.8 / len(methods)
            error = np.clip([part["value"] - part["low"], part["high"] - part["value"]], 0, None)
            axes.errorbar(place, part["value"], yerr=error, fmt="o", color=CYCLE[k % len(CYCLE)], label=method)
        axes.set_xticks(np.arange(len(cuts)), cuts)
        axes.set(xlabel="pairs taken, L residues", ylabel="share in contact")
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside right upper")
    return figure


def quality_against_variety(rows: pd.DataFrame, xlabel: str, ylabel: str) -> Figure:
    """One point a setting, its area growing with the passes; rows: family, label, passes, variety, value, low, high."""
    with style():
        figure, ((axes,),) = panels(1, 1, (7.2, 4.4))
        for family, part in rows.groupby("family", sort=False):
            error = np.clip([part["value"] - part["low"], part["high"] - part["value"]], 0, None)
            paint, title = {"color": colour_of(family)}, FAMILIES.get(family, (family,))[0]
            axes.errorbar(part["variety"], part["value"], yerr=error, fmt="none", elinewidth=0.8, alpha=0.6, **paint)
            axes.scatter(part["variety"], part["value"], s=12 + 2.5 * part["passes"], alpha=0.8, label=title, **paint)
        for _, row in rows.iterrows():
            axes.annotate(
                row["label"], (row["variety"], row["value"]), (4, 4), textcoords="offset points", fontsize="x-small"
            )
        axes.set(xlabel=xlabel, ylabel=ylabel)
        figure.legend(loc="outside right upper", markerscale=0.7)
    return figure


def _residues(axes: Axes, length: int, title: str) -> None:
    step = next(s for s in (5, 10, 20, 50, 100) if length / s <= 7 or s == 100)
    ticks = np.arange(step, length + 1, step)
    axes.set_xticks(ticks - 1, ticks, fontsize="small")
    axes.set_yticks(ticks - 1, ticks, fontsize="small")
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("residue")
    axes.grid(False)
    axes.spines[:].set_visible(True)


def _square(matrix: ArrayLike, length: int) -> np.ndarray:
    array = np.asarray(matrix, dtype=float)
    if array.shape != (length, length):
        raise ValueError(f"a matrix over {length} residues is [{length}, {length}], not {list(array.shape)}")
    return array
