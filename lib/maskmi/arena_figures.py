"""Figures of the arena: many decoders against what they cost, with the best in strong colours, and what they do."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from maskmi.arena import best_rows, frontier
from maskmi.figures import INK, log_axis, panels, style

COSTS = {
    "passes": "passes per sequence",
    "calls": "network calls for the batch",
    "steps": "steps per sequence",
    "seconds": "seconds per sequence",
}
STRONG = ["#0072B2", "#009E73", "#882255", "#E69F00", "#332288", "#56B4E9", "#999933", "#CC79A7", "#117733", "#AA4499"]
OURS = "#D55E00"  # the reference's colour, as MI-guided decoding has it in all figures
WORSE = 0.4  # share of the settings that the large panel need not show
MARKERS = "Ds^v<>pPhXd*8H"


def quality_against_costs(
    table: pd.DataFrame,
    reference: str,
    costs: Sequence[str] = tuple(COSTS),
    ylabel: str = "solved %",
    scale: float = 100,
    negated: bool = False,
) -> Figure:
    """Every contender's best against each cost, with 95 % intervals: large the better part, below it all of it.

    A contender's line joins the settings that no other of its own beats at as low a cost; its other settings are faint
    dots. Contenders with a setting on the Pareto frontier of passes, drawn as a grey staircase, and the reference have
    strong colours, the others muted ones; marks are hollow, and no part of the staircase, where a contender saw fewer
    sequences than others. The large panel shows the first cost for the better 60 % of the settings, but
    for a few of the dearest; the small ones show all, one cost each.

    Args:
        table: of :func:`maskmi.arena.sweep_table`; ``value``, ``low`` and ``high`` are multiplied by ``scale``.
        reference: the contender in the colour of MI-guided decoding.
        negated: whether values are the negative of what ``ylabel`` says, so that better is above; ticks then show that.
    """
    missing = {"contender", "n", "passes", "value", "low", "high", *costs} - set(table)
    if missing or table.empty:
        raise ValueError(f"the arena's figure lacks {', '.join(sorted(missing)) or 'rows'}")
    table = table.assign(**{key: scale * table[key] for key in ("value", "low", "high")})
    looks, strong = _strong_looks(table, reference)
    with style():
        figure = plt.figure(figsize=(11.5, 8.6))
        plt.close(figure)
        grid = figure.add_gridspec(2, len(costs), height_ratios=(2, 1))
        large = figure.add_subplot(grid[0, :])
        small = [figure.add_subplot(grid[1, i]) for i in range(len(costs))]
        for axes, cost in zip([large, *small], [costs[0], *costs], strict=True):
            _staircase(axes, table, cost)
            for name, rows in table.groupby("contender", sort=False):
                _contender(axes, rows, cost, looks[name], small=axes is not large)
            log_axis(axes, subs=(1.0, 2.0, 5.0) if axes is large else (1.0, 3.0))
            axes.set(xlabel=COSTS.get(cost, cost))
            _show_negated(axes, negated)
        for axes in (large, small[0]):
            axes.set_ylabel(ylabel)
        for axes in small[1:]:
            axes.sharey(small[0])
            axes.tick_params(labelleft=False)
        _zoom(large, table, costs[0])
        _legend(figure, looks, strong)
    return figure


def _show_negated(axes: Axes, negated: bool) -> None:
    if negated:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{0 - value:.4g}"))


def quality_against_variety(
    table: pd.DataFrame,
    reference: str,
    xlabel: str,
    ylabel: str,
    natural: tuple[float, float] | None = None,
    negated: bool = False,
) -> Figure:
    """Every setting's quality and variety, with its passes beside it; a line joins a contender's by rising passes.

    Contenders have the colours that :func:`quality_against_costs` gives them for the same table.

    Args:
        table: of :func:`maskmi.arena.sweep_table`, with ``variety`` beside it.
        natural: variety and value of natural sequences, drawn as a star.
        negated: as of :func:`quality_against_costs`.
    """
    missing = {"contender", "n", "passes", "variety", "value", "low", "high"} - set(table)
    if missing or table.empty:
        raise ValueError(f"the figure of variety lacks {', '.join(sorted(missing)) or 'rows'}")
    looks, strong = _strong_looks(table, reference)
    with style():
        figure, ((axes,),) = panels(1, 1, (11.5, 6))
        for name, rows in table.groupby("contender", sort=False):
            rows, look = rows.sort_values("passes"), looks[name] | {"lw": 0.8}
            error = np.clip([rows.value - rows.low, rows.high - rows.value], 0, None)
            axes.errorbar(
                rows.variety, rows.value, yerr=error, **({"elinewidth": 0.5, "mec": "white", "mew": 0.5} | look)
            )
            for _, row in rows[[name in strong] * len(rows)].iterrows():
                text = {"textcoords": "offset points", "fontsize": "x-small", "color": look["color"]}
                axes.annotate(f"{row.passes:.0f}", (row.variety, row.value), (4, 4), **text)
        extra = []
        if natural is not None:
            axes.plot(*natural, ls="", marker="*", ms=14, color=INK, zorder=5)
            extra = [plt.Line2D([], [], ls="", marker="*", ms=10, color=INK, label="natural")]
        axes.set(xlabel=xlabel, ylabel=ylabel)
        _show_negated(axes, negated)
        _legend(figure, looks, strong, extra)
    return figure


def _strong_looks(table: pd.DataFrame, reference: str) -> tuple[dict[str, dict], list[str]]:
    """The look of each contender, hollow where it saw fewer sequences, and those in strong colours: the reference, and
    all on the frontier of passes."""
    strong = list(dict.fromkeys([reference, *table.contender.loc[best_rows(table).index]]))
    looks = _looks(list(dict.fromkeys(table.contender)), strong, reference)
    for name, n in table.groupby("contender").n.max().items():
        if n < table.n.max():
            looks[name] |= {"mfc": "white", "mec": looks[name]["color"], "mew": 1.0}
    return looks, strong


def _zoom(axes: Axes, table: pd.DataFrame, cost: str) -> None:
    """Limits that show the better settings, up to the dearest one on the frontier or most of them."""
    whole = table[table.n == table.n.max()]
    shown = whole[whole.value >= whole.value.quantile(WORSE)]
    last = best_rows(shown, cost)[cost].max()
    bottom, top = shown.value.min(), whole.high.max()
    margin = 0.04 * (top - bottom) or 1.0
    axes.set_ylim(bottom - margin, top + margin)
    axes.set_xlim(0.9 * shown[cost].min(), 1.1 * max(last, shown[cost].quantile(0.9)))


def _looks(names: Sequence[str], strong: Sequence[str], reference: str) -> dict[str, dict]:
    """Colour, marker and weight of each contender: the muted ones in pale colours of the whole wheel."""
    muted = [name for name in names if name not in strong]
    wheel = sns.husl_palette(max(len(muted), 1), s=0.55, l=0.66)
    others = iter(STRONG * 9)
    looks = {}
    for index, name in enumerate(names):
        marker = "o" if name == reference else MARKERS[index % len(MARKERS)]
        if name in strong:
            colour = OURS if name == reference else next(others)
            looks[name] = {"color": colour, "marker": marker, "lw": 1.8, "ms": 6, "zorder": 4, "alpha": 1.0}
        else:
            colour = wheel[muted.index(name)]
            looks[name] = {"color": colour, "marker": marker, "lw": 0.9, "ms": 4.5, "zorder": 2, "alpha": 0.9}
    return looks


def _contender(axes: Axes, rows: pd.DataFrame, cost: str, look: dict, small: bool) -> None:
    look = look | {"ms": (0.6 if small else 1.0) * look["ms"], "lw": (0.7 if small else 1.0) * look["lw"]}
    own = frontier(rows[cost], rows.value)
    line = rows[own].sort_values(cost)
    error = np.clip([line.value - line.low, line.high - line.value], 0, None)
    thin = {"elinewidth": 0.5 * look["lw"], "mec": "white", "mew": 0.5}
    axes.errorbar(line[cost], line.value, yerr=error, **(thin | look))
    faint = {"color": look["color"], "alpha": 0.35, "ms": 0.5 * look["ms"], "zorder": 1, "ls": "", "mew": 0}
    axes.plot(rows[cost][~own], rows.value[~own], marker=look["marker"], **faint)


def _staircase(axes: Axes, table: pd.DataFrame, cost: str) -> None:
    best = best_rows(table, cost)
    end = table[cost].max()
    axes.step(
        [*best[cost], end],
        [*best.value, best.value.iloc[-1]],
        where="post",
        color="#BBBBBB",
        lw=4,
        zorder=0.8,
        solid_capstyle="round",
        gid="frontier",
    )


def _legend(
    figure: Figure, looks: Mapping[str, Mapping], strong: Sequence[str], first: Sequence[plt.Line2D] | None = None
) -> None:
    """Strong contenders above the muted ones; ``first`` of all what is given, or else the frontier."""

    def handle(name: str) -> plt.Line2D:
        keys = {key: value for key, value in looks[name].items() if key != "zorder"}
        return plt.Line2D([], [], label=name, **({"mec": "white", "mew": 0.5} | keys))

    stairs = plt.Line2D([], [], color="#BBBBBB", lw=4, label="Pareto frontier")
    muted = sorted((name for name in looks if name not in strong), key=str.lower)
    blank = [plt.Line2D([], [], ls="", label="")] if muted else []
    strong = [name for name in strong if name in looks]
    handles = [*([stairs] if first is None else first), *map(handle, strong), *blank, *map(handle, muted)]
    figure.legend(handles=handles, loc="outside right center", fontsize="small", labelspacing=0.5)


def paired_differences(
    table: pd.DataFrame, reference: str, xlabel: str, scale: float = 100, linear: float = 5
) -> Figure:
    """Each contender's difference from the reference under the same cap, one panel a cap, with 95 % intervals.

    Args:
        table: of :func:`maskmi.arena.against`; rows without a difference are left out. So are those without a cap,
            unless the reference has none either: more passes than the reference's tell nothing of which is better.
        linear: the axis is linear up to this on both sides, logarithmic beyond.

    Raises:
        ValueError: where no row is left.
    """
    table = table[(table.contender != reference) & table.difference.notna()]
    if np.isfinite(table.cap).any():
        table = table[np.isfinite(table.cap)]
    if table.empty:
        raise ValueError("there is no difference to draw: the reference keeps none of the caps, or stands alone")
    caps = sorted(set(table.cap))
    names = list(table.groupby("contender").difference.max().sort_values().index)
    with style():
        figure, (row,) = panels(1, len(caps), (11, 1.2 + 0.22 * len(names)), sharey=True, sharex=True)
        for axes, cap in zip(row, caps, strict=True):
            here = table[table.cap == cap]
            ahead, behind = here.difference_low > 0, here.difference_high < 0
            for part, colour in ((~ahead & ~behind, "#999999"), (ahead, "#009E73"), (behind, "#882255")):
                _differences(axes, here[part], names, colour, scale)
            axes.axvline(0, color=OURS, lw=1.2, zorder=1)
            axes.set_xscale("symlog", linthresh=linear, linscale=1.5)
            axes.xaxis.set_major_locator(FixedLocator([sign * k * linear for sign in (-1, 1) for k in (0, 1, 4, 16)]))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(
                FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0")
            )
            axes.set_title("any passes" if np.isinf(cap) else f"at most {cap:g} passes", fontsize="medium")
        row[0].set_yticks(range(len(names)), names, fontsize="small")
        row[0].set_ylim(-0.7, len(names) - 0.3)
        note = f"axis linear between −{linear:g} and +{linear:g}, logarithmic beyond"
        figure.supxlabel(f"{xlabel}; {note}", fontsize="medium", color=INK)
    return figure


def _differences(axes: Axes, rows: pd.DataFrame, names: Sequence[str], colour: str, scale: float) -> None:
    if len(rows):
        error = np.clip([rows.difference - rows.difference_low, rows.difference_high - rows.difference], 0, None)
        y = [names.index(name) for name in rows.contender]
        axes.errorbar(scale * rows.difference, y, xerr=scale * error, color=colour, ls="", marker="o", ms=4.5, lw=1)


def shares(parts: Mapping[str, pd.DataFrame], xlabels: Mapping[str, str]) -> Figure:
    """Stacked bars, a panel for each table: ``parts`` maps a title to shares in per cent, decoders by kinds."""
    if not parts or any(part.empty for part in parts.values()):
        raise ValueError("stacked bars need a table with rows for each panel")
    count = max(len(part) for part in parts.values())
    with style():
        figure, (row,) = panels(1, len(parts), (11, 1.6 + 0.22 * count), sharey=True)
        for axes, (title, part) in zip(row, parts.items(), strict=True):
            left = np.zeros(len(part))
            for kind, colour in zip(part, sns.color_palette("colorblind", len(part.columns)), strict=True):
                axes.barh(range(len(part)), part[kind], left=left, color=colour, label=kind, height=0.75)
                left += part[kind].fillna(0).to_numpy()
            axes.set_title(title, fontsize="medium")
            axes.set(xlabel=xlabels[title])
            axes.grid(False, axis="y")
            axes.legend(
                loc="upper center", bbox_to_anchor=(0.5, -0.65 / figure.get_figheight()), ncols=3, fontsize="small"
            )
        row[0].set_yticks(range(count), list(next(iter(parts.values())).index), fontsize="small")
        row[0].invert_yaxis()
    return figure
