"""The study's general figures. Each function takes plain arrays or tables and returns a matplotlib ``Figure``.

The figures are closed in pyplot, so that a notebook shows one only where it is the value of a cell or displayed. One
decoder family has one colour and marker in all figures. Tables are checked for the columns that a function names.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.scale import SymmetricalLogTransform
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from numpy.typing import ArrayLike

from maskmi.artefacts import write_atomically

# Title in legends, colour (from the Okabe-Ito and Tol palettes, which colour-blind readers can tell apart), marker.
FAMILIES = {
    "sequential": ("sequential", "#4D4D4D", "s"),
    "naive": ("naive", "#E69F00", "v"),
    "margin": ("margin", "#999933", "^"),
    "confidence_threshold": ("confidence threshold", "#009E73", "<"),
    "confidence_factor": ("confidence factor", "#44AA99", ">"),
    "entropy_bounded": ("entropy bounded", "#0072B2", "D"),
    "mi_guided": ("MI-guided", "#D55E00", "o"),
    "mi_oracle": ("MI oracle", "#882255", "*"),
    "tv_guided": ("TV-guided", "#CC79A7", "p"),
    "jacobian_guided": ("Jacobian-guided", "#332288", "h"),
    "attention_guided": ("attention-guided", "#56B4E9", "P"),
}
OTHER = "#888888"
CYCLE = ["#D55E00", "#0072B2", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#332288", OTHER]
LINES = ("-", "--", ":", "-.")
INK = "#333333"
SMOOTH = 0.9 * np.log10(np.e)  # linscale at which a symmetric log scale has no kink at its threshold


@contextmanager
def style():
    """The look of every figure, inside of a ``with`` block; 8 inches of width are 1200 pixels once saved."""
    rc = {
        **sns.axes_style("ticks", {"axes.edgecolor": INK, "grid.color": "#E6E6E6", "font.family": "DejaVu Sans"}),
        **sns.plotting_context("paper", font_scale=1.05),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.linewidth": 0.8,
        "xtick.major.width": 0.8,
        "ytick.major.width": 0.8,
        "lines.linewidth": 1.4,
        "lines.markersize": 5.5,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
        "figure.dpi": 100,
    }
    with plt.rc_context(rc):
        yield


def panels(rows: int, columns: int, size: tuple[float, float], **kwargs) -> tuple[Figure, np.ndarray]:
    """A figure of ``size`` (inches) that pyplot doesn't keep, with its axes [rows, columns]."""
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **kwargs)
    plt.close(figure)
    return figure, axes


def save(figure: Figure, folder: Path | str, name: str) -> Path:
    """Write ``folder/name.png`` at 150 dpi; the same figure gives the same bytes. The folder is made if missing."""
    path = Path(folder) / f"{name}.png"
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150, facecolor="white", metadata={"Software": None})
    write_atomically(path, data.getvalue())
    return path


def training_curve(log: pd.DataFrame) -> Figure:
    """Losses and accuracy of a training run; ``log`` has grids, loss, puzzle_loss (nats a cell), puzzle_accuracy (0–1).

    Values that were not measured at a row are NaN; lines run over the others.
    """
    _check(log, ["grids", "loss", "puzzle_loss", "puzzle_accuracy"])
    with style():
        figure, ((left, right),) = panels(1, 2, (8, 3), sharex=True)
        curves = [(left, "loss", "#0072B2", "training batches"), (left, "puzzle_loss", "#D55E00", "held-out puzzles")]
        for axes, column, colour, label in [*curves, (right, "puzzle_accuracy", "#D55E00", "held-out puzzles")]:
            known = log[["grids", column]].dropna()
            y = known[column] * (100 if axes is right else 1)
            axes.plot(known["grids"] / 1000, y, color=colour, label=label, marker="." if len(known) <= 40 else None)
        left.set(ylabel="loss (nats per masked cell)", xlabel="grids shown (thousands)")
        left.set_ylim(bottom=0)
        right.set(ylabel="masked cells right (%)", xlabel="grids shown (thousands)")
        left.legend()
    return figure


def calibration(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> Figure:
    """Predicted against true MI in bins; ``curves`` maps a predictor's name to its bins {predicted, true, n} (nats)."""
    if not curves or not all(curves.values()):
        raise ValueError("calibration needs at least one curve, and at least one bin in each")
    with style():
        figure, ((axes,),) = panels(1, 1, (5.6, 4.4))
        values = [bin[key] for bins in curves.values() for bin in bins for key in ("predicted", "true")]
        _identity(axes, values, "predicted = true")
        for (name, bins), colour, marker in zip(curves.items(), CYCLE * 9, "oDs^vp<>" * 9, strict=False):
            frame = pd.DataFrame(bins)
            axes.plot(frame["predicted"], frame["true"], color=colour, marker=marker, label=name)
        for which in "xy":
            nats_axis(axes, which, values, 1e-3)
        axes.set(xlabel="predicted MI (nats, mean of bin)", ylabel="true MI (nats, mean of bin)")
        _legend(figure, [axes], inside=4)
    return figure


def learning_curve(rows: pd.DataFrame) -> Figure:
    """Held-out R² and Spearman of heads against the probed contexts (or their passes) they were trained on.

    ``rows`` has contexts, passes (network evaluations spent on probing), r2, spearman.
    """
    _check(rows, ["contexts", "passes", "r2", "spearman"])
    with style():
        figure, ((left, right),) = panels(1, 2, (8, 3.2), sharey=True)
        for axes, column, label in (
            (left, "contexts", "probed contexts"),
            (right, "passes", "passes spent on probing"),
        ):
            ordered = rows.sort_values(column)
            axes.plot(ordered[column], ordered["r2"], color="#0072B2", marker="o", label="R²")
            axes.plot(ordered[column], ordered["spearman"], color="#D55E00", marker="D", label="Spearman")
            axes.set(xlabel=label)
            log_axis(axes, subs=(1.0, 2.0, 5.0) if ordered[column].max() < 50 * ordered[column].min() else (1.0,))
        left.xaxis.set_major_locator(FixedLocator(sorted(rows["contexts"])))
        left.set(ylabel="held-out score")
        top = max(1.0, rows[["r2", "spearman"]].max().max())
        left.set_ylim(min(0.0, rows[["r2", "spearman"]].min().min()) - 0.02, top + 0.02)
        left.legend(loc="lower right")
    return figure


def quality_against_passes(
    rows: pd.DataFrame,
    reference: pd.DataFrame | None = None,
    xlabel: str = "passes per puzzle",
    ylabel: str = "solved %",
) -> Figure:
    """Quality of decoders against what they cost, with 95 % intervals.

    Args:
        rows: family, passes, value, low, high (the unit of ``ylabel``); label names the curve in the legend, one curve
            for each (family, label), by default the family; panel, by default one.
        reference: published points, family, passes, value; drawn hollow in every panel, or in the one its own column
            panel names.

    The family ``sequential`` is a dashed line with a band over the whole width.
    """
    rows = _curves(rows, ["passes", "value", "low", "high"])
    if "panel" not in rows:
        rows["panel"] = ""
    if reference is not None:
        _check(reference, ["family", "passes", "value"])
    names = list(dict.fromkeys(rows["panel"]))
    columns = min(len(names), 2)
    lines = -(-len(names) // columns)
    with style():
        figure, grid = panels(lines, columns, (8, 1 + (3.2 if columns == 2 else 3.8) * lines), sharex=True, sharey=True)
        for axes, name in zip(grid.flat, names, strict=False):
            for (family, label), curve, line in each_curve(rows[rows["panel"] == name]):
                if family == "sequential":
                    colour = colour_of(family)
                    line = {"-": "--", "--": ":"}.get(line, line)  # a level is never a solid line
                    for _, row in curve.iterrows():
                        axes.axhspan(row["low"], row["high"], color=colour, alpha=0.12, lw=0, zorder=0.5)
                        axes.axhline(row["value"], color=colour, ls=line, lw=1, zorder=1)
                _errorbar(axes, curve.sort_values("passes"), "passes", "value", family, label, line)
            if reference is not None:
                here = reference[reference["panel"] == name] if "panel" in reference else reference
                for family, points in here.groupby("family", sort=False):
                    paint = {"markeredgecolor": colour_of(family), "markerfacecolor": "white", "markeredgewidth": 1.3}
                    axes.plot(points["passes"], points["value"], ls="", marker=_marker(family), zorder=4, **paint)
            if name:
                axes.set_title(name, fontsize="medium")
            log_axis(axes)
        _outer_labels(grid, len(names), xlabel, ylabel)
        hollow = {"marker": "o", "markerfacecolor": "white", "markeredgecolor": INK, "ls": ""}
        extra = [] if reference is None else [plt.Line2D([], [], label="published", **hollow)]
        _legend(figure, grid.flat, extra=extra)
    return figure


def error_against_budget(rows: pd.DataFrame) -> Figure:
    """Mean joint error of a parallel step against the budget that is meant to bound it, both in nats.

    ``rows`` has family, budget, error, low, high, and perhaps label, as in :func:`quality_against_passes`.
    """
    rows = _curves(rows, ["budget", "error", "low", "high"])
    with style():
        figure, ((axes,),) = panels(1, 1, (6.4, 4.4))
        _identity(axes, rows["budget"], "error = budget")
        for (family, label), curve, line in each_curve(rows):
            _errorbar(axes, curve.sort_values("budget"), "budget", "error", family, label, line)
        threshold = 10 ** np.floor(np.log10(rows.loc[rows["budget"] > 0, "budget"].min()))
        threshold = float(np.clip(threshold, 1e-4, 0.1)) if np.isfinite(threshold) else 1e-2
        nats_axis(axes, "x", rows["budget"], threshold)
        nats_axis(axes, "y", rows[["error", "low", "high"]].to_numpy().ravel(), threshold)
        axes.set(xlabel="budget of a step (nats)", ylabel="mean joint error of a parallel step (nats)")
        _legend(figure, [axes], inside=4)
    return figure


def error_by_blanks(rows: pd.DataFrame) -> Figure:
    """Joint error of parallel steps (nats, left) and their size (right) by the number of masked positions before them.

    ``rows`` has family, blanks, value, low, high, members, perhaps label.
    """
    rows = _curves(rows, ["blanks", "value", "low", "high", "members"])
    with style():
        figure, ((left, right),) = panels(1, 2, (9, 3.6))
        for (family, label), curve, line in each_curve(rows):
            curve = curve.sort_values("blanks")
            _errorbar(left, curve, "blanks", "value", family, label, line)
            right.plot(curve.blanks, curve.members, color=colour_of(family), ls=line, marker=_marker(family), ms=5)
        left.axhline(0, color="#808080", lw=0.8, zorder=1)
        left.set(xlabel="masked positions before the step", ylabel="joint error of a step (nats)")
        right.set(xlabel="masked positions before the step", ylabel="positions committed in a step")
        right.set_ylim(bottom=0)
        _legend(figure, [left], inside=0)
    return figure


def ablation(rows: pd.DataFrame, ylabel: str = "solved %") -> Figure:
    """Quality and passes against a weight; ``rows`` has lam or alpha, value, low, high, passes, line (its budget)."""
    weight, symbol = ("lam", "λ, weight of the dependence") if "lam" in rows else ("alpha", "α, weight of the entropy")
    _check(rows, [weight, "value", "low", "high", "passes", "line"])
    lines = list(dict.fromkeys(rows["line"]))
    with style():
        figure, ((left, right),) = panels(1, 2, (8, 3.6), sharex=True)
        for line, colour in zip(lines, sns.color_palette("viridis", len(lines)), strict=True):
            curve = rows[rows["line"] == line].sort_values(weight)
            error = _intervals(curve, "value")
            axes = {"color": colour, "marker": "o", "label": str(line)}
            left.errorbar(curve[weight], curve["value"], yerr=error, elinewidth=1, **axes)
            right.plot(curve[weight], curve["passes"], **axes)
        left.set(xlabel=symbol, ylabel=ylabel)
        right.set(xlabel=symbol, ylabel="passes per sequence")
        right.set_ylim(bottom=0)
        _legend(figure, [left], inside=0)
    return figure


def grade_split(rows: pd.DataFrame, xlabel: str = "logic that a puzzle needs", ylabel: str = "solved %") -> Figure:
    """Quality by grade, a point for each decoder; ``rows`` has family, grade, value, low, high, perhaps label and n.

    Grades keep the order in which they come. ``n``, the number of puzzles of the grade, is shown below its name.
    """
    rows = _curves(rows, ["grade", "value", "low", "high"])
    grades = list(dict.fromkeys(rows["grade"]))
    count = rows.groupby(["family", "label"]).ngroups
    width = min(0.8, 0.14 * count)
    offsets = np.linspace(-width / 2, width / 2, count) if count > 1 else [0.0]
    with style():
        figure, ((axes,),) = panels(1, 1, (8, 4))
        for ((family, label), curve, line), offset in zip(each_curve(rows), offsets, strict=True):
            at = curve.assign(x=[grades.index(grade) + offset for grade in curve["grade"]])
            _errorbar(axes, at, "x", "value", family, label, line)[0].set_linestyle("")
        for edge in np.arange(1, len(grades)) - 0.5:
            axes.axvline(edge, color="#D0D0D0", lw=0.8)
        sizes = rows.groupby("grade")["n"].first() if "n" in rows else {}
        names = [f"{grade}\nn = {sizes[grade]:,.0f}" if "n" in rows else str(grade) for grade in grades]
        axes.set_xticks(range(len(grades)), names)
        axes.tick_params(axis="x", length=0)
        axes.grid(False, axis="x")
        axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(-0.5, len(grades) - 0.5))
        _legend(figure, [axes])
    return figure


def estimators(a: ArrayLike, b: ArrayLike, names: tuple[str, str]) -> Figure:
    """Two measurements of the same pairs against each other (nats, any equal shapes): a 2-D histogram, log counts.

    ``names`` are the axes' labels, without the unit. The scale is linear within ±0.01 nats and logarithmic beyond.
    """
    a, b = np.asarray(a, float).ravel(), np.asarray(b, float).ravel()
    if a.shape != b.shape or not a.size or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError(f"two measurements must be finite and of equal, non-zero size, not {a.size} and {b.size}")
    both = np.concatenate([a, b])
    scale = SymmetricalLogTransform(10, 0.01, SMOOTH)
    ends = scale.transform(np.array([min(both.min(), 0.0), max(both.max(), 0.02)]))
    # Zero is an edge, so that negative values have bins of their own.
    step = (ends[1] - ends[0]) / 90
    edges = np.arange(np.floor(ends[0] / step), np.ceil(ends[1] / step) + 1) * step
    counts, _, _ = np.histogram2d(scale.transform(a), scale.transform(b), bins=[edges, edges])
    with style():
        figure, ((axes,),) = panels(1, 1, (5.6, 4.6))
        edges = scale.inverted().transform(edges)
        _identity(axes, edges, "identity")
        shown = np.ma.masked_equal(counts.T, 0)
        mesh = axes.pcolormesh(edges, edges, shown, norm=LogNorm(1, max(counts.max(), 2)), cmap="viridis", zorder=1.5)
        for which in "xy":
            nats_axis(axes, which, both, 0.01)
            axes.set(**{f"{which}lim": (edges[0], edges[-1])})
        axes.set(xlabel=f"{names[0]} (nats)", ylabel=f"{names[1]} (nats)", aspect="equal")
        figure.colorbar(
            mesh, ax=axes, label="pairs per bin", shrink=0.9, format=FuncFormatter(lambda n, _: f"{n:,.0f}")
        )
        facts = [f"n = {a.size:,}", f"mean difference {np.mean(b - a):+.2g} nats"]
        if np.ptp(a) > 0 and np.ptp(b) > 0:
            facts.insert(1, f"Pearson {np.corrcoef(a, b)[0, 1]:.3f}")
        axes.set_title(", ".join(facts), fontsize="small")
    return figure


def colour_of(family: str) -> str:
    """The colour of a decoder family in all figures; a neutral one for families that :data:`FAMILIES` lacks."""
    return FAMILIES.get(family, (family, OTHER, "d"))[1]


def _marker(family: str) -> str:
    return FAMILIES.get(family, (family, OTHER, "d"))[2]


def _check(frame: pd.DataFrame, columns: Iterable[str]) -> None:
    missing = [column for column in columns if column not in frame]
    if missing or frame.empty:
        raise ValueError(f"the table for a figure lacks {', '.join(missing) or 'rows'}; it has {list(frame.columns)}")


def _curves(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """A checked copy with a ``label`` for each row."""
    _check(rows, ["family", *columns])
    titles = rows["family"].map(lambda family: FAMILIES.get(family, (family,))[0])
    return rows.assign(label=rows["label"].fillna(titles) if "label" in rows else titles)


def each_curve(rows: pd.DataFrame):
    """((family, label), rows, line style) of each curve; the curves of one family differ in line style."""
    seen: dict[str, int] = {}
    for (family, label), curve in rows.groupby(["family", "label"], sort=False):
        yield (family, label), curve, LINES[seen.get(family, 0) % len(LINES)]
        seen[family] = seen.get(family, 0) + 1


def _intervals(curve: pd.DataFrame, value: str) -> np.ndarray:
    """Lengths [2, n] of error bars; a value outside of its own interval, as rounding can make it, has none there."""
    return np.clip([curve[value] - curve["low"], curve["high"] - curve[value]], 0, None)


def _errorbar(axes: Axes, curve: pd.DataFrame, x: str, y: str, family: str, label: str, line: str):
    colour = colour_of(family)
    # Variants of a family are dashed and filled with a lighter shade; published points alone are hollow.
    edge = (
        (colour, 1.1, sns.blend_palette(["white", colour], 5)[2])
        if line in LINES[1:] and family != "sequential"
        else ("white", 0.5, colour)
    )
    size = 9 if _marker(family) == "*" else 6
    marker = {"marker": _marker(family), "ms": size, "mec": edge[0], "mew": edge[1], "mfc": edge[2]}
    error = _intervals(curve, y)
    return axes.errorbar(
        curve[x], curve[y], yerr=error, color=colour, ls=line, label=label, elinewidth=1, zorder=3, **marker
    )


def _identity(axes: Axes, values: ArrayLike, label: str) -> None:
    # Dense and geometric, since on a symmetric log scale with two thresholds the identity bends.
    low, high = min(0.0, float(np.min(values))), float(np.max(values)) * 1.5
    line = np.unique([low, 0.0, *np.geomspace(1e-6, max(high, 1e-5), 200), *-np.geomspace(1e-6, max(-low, 1e-6), 50)])
    axes.plot(line, line, color=OTHER, lw=1, ls=(0, (4, 3)), label=label, zorder=1, gid="identity")


def nats_axis(axes: Axes, which: str, values: ArrayLike, threshold: float) -> None:
    """A scale for MI and errors: linear within ±``threshold``, logarithmic beyond, a plain number at each decade."""
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    low, high = float(values.min()), max(float(values.max()), 2 * threshold)
    decades = 10.0 ** np.arange(round(np.log10(threshold)), np.ceil(np.log10(high)) + 1)
    axis = axes.xaxis if which == "x" else axes.yaxis
    getattr(axes, f"set_{which}scale")("symlog", linthresh=threshold, linscale=SMOOTH)
    # On an axis of many decades the label of minus the threshold would run into that of zero.
    negative = -decades[::-1] if threshold >= 0.01 else -decades[:0:-1]
    axis.set_major_locator(FixedLocator([*negative, 0.0, *decades] if low < 0 else [0.0, *decades]))
    minor = np.concatenate([decades[:-1] * k for k in range(2, 10)])
    axis.set_minor_locator(FixedLocator(minor))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
    axis.set_minor_formatter(NullFormatter())
    bottom = 1.4 * low - 0.2 * threshold if low < 0 else -0.15 * threshold
    getattr(axes, f"set_{which}lim")(bottom, 1.5 * high)


def log_axis(axes: Axes, subs: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_minor_locator(NullLocator() if len(subs) > 1 else LogLocator(subs=range(2, 10)))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _short(value: float, _=None) -> str:
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k" if value >= 1e4 else f"{value:,g}"


def _outer_labels(grid: np.ndarray, used: int, xlabel: str, ylabel: str) -> None:
    """Labels at the left and below the lowest panel of each column; unused panels disappear."""
    columns = grid.shape[1]
    for k, axes in enumerate(grid.flat):
        axes.set_visible(k < used)
        if k % columns == 0:
            axes.set_ylabel(ylabel)
        if k + columns >= used:
            axes.set_xlabel(xlabel)
            axes.tick_params(labelbottom=True)


def _legend(figure: Figure, all_axes: Iterable[Axes], inside: int = 0, extra: Sequence = ()) -> None:
    """One legend for all panels: in the panel up to ``inside`` entries, below the panels if there are more."""
    all_axes = list(all_axes)
    found = {
        label: handle for axes in all_axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    found |= {handle.get_label(): handle for handle in extra}
    if len(found) <= inside:
        all_axes[0].legend(found.values(), found.keys())
    else:
        columns = max(1, min(4, len(found), int(figure.get_figwidth() * 12 / (max(map(len, found)) + 6))))
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)
