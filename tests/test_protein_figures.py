"""Figures of proteins carry the data they were given; what is drawn, not how it looks."""

import numpy as np
import pandas as pd
import pytest

from maskmi import figures
from maskmi.protein import figures as protein_figures


def symmetric_matrix(length, seed=0):
    matrix = np.random.default_rng(seed).gamma(0.3, 0.3, (length, length))
    return (matrix + matrix.T) * ~np.eye(length, dtype=bool)


def legend_labels(figure):
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def test_training_curve_shows_losses_by_mask_ratio_and_skips_what_was_not_measured():
    log = pd.DataFrame({"shown": [1000, 2000], "loss": [3.0, 2.5], "validation_loss": [2.9, 2.6]})
    log["validation_loss_by_mask_ratio"] = [[2.8, None], [2.4, 2.7]]
    left, right = protein_figures.training_curve(log).axes
    assert left.lines[0].get_xydata().tolist() == [[1, 3.0], [2, 2.5]]
    assert left.lines[1].get_xydata().tolist() == [[1, 2.9], [2, 2.6]]
    low, high, _ = right.lines
    assert (low.get_label(), high.get_label()) == ("0–50 % masked", "50–100 % masked")
    assert low.get_ydata().tolist() == [2.8, 2.4] and np.isnan(high.get_ydata()[0]) and high.get_ydata()[1] == 2.7
    # the dashed level of a network without any idea: log 20 = 2.9957
    assert [round(axes.lines[-1].get_ydata()[0], 4) for axes in (left, right)] == [2.9957, 2.9957]
    with pytest.raises(ValueError, match="lacks shown"):
        protein_figures.training_curve(log.drop(columns="shown"))
    with pytest.raises(ValueError, match="lacks rows"):
        protein_figures.training_curve(log.iloc[:0])


def test_mi_maps_share_one_scale_and_hide_visible_residues():
    masked = np.array([True, False, True, True, False])
    big, small = symmetric_matrix(5), symmetric_matrix(5, 1) / 10
    figure = protein_figures.mi_maps({"probed": big, "head": small}, masked)
    images = [axes.images[0] for axes in figure.axes[:2]]
    top = max(big[0, 2], big[0, 3], big[2, 3])
    assert {image.norm.vmin for image in images} == {0} and {image.norm.vmax for image in images} == {top}
    shown = images[1].get_array()
    assert sorted(map(tuple, np.argwhere(~shown.mask))) == [(0, 2), (0, 3), (2, 0), (2, 3), (3, 0), (3, 2)]
    assert shown[0, 2] == small[0, 2]
    assert [axes.get_title() for axes in figure.axes[:2]] == ["probed", "head"]
    with pytest.raises(ValueError, match="two masked"):
        protein_figures.mi_maps({"probed": big}, [True, False, False, False, False])
    with pytest.raises(ValueError, match=r"\[5, 5\], not \[4, 4\]"):
        protein_figures.mi_maps({"probed": big[:4, :4]}, masked)


def test_writing_steps_are_shares_of_the_last_step_and_grey_where_given():
    runs = {"slow": ("ACDE", [0, 3, 1, 2]), "fast": ("ACD", [0, 0, np.nan])}
    axes = protein_figures.writing_steps(runs).axes[0]
    shown = axes.images[0].get_array()
    # steps over the number of the last: 3 for the first; 0 for the second, which then counts as 1
    assert shown[0].tolist() == [0, 1, pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert shown.mask.tolist() == [[False] * 4, [False, False, True, True]]
    assert [text.get_text() for text in axes.texts] == list("ACDEACD")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["slow", "fast"]
    with pytest.raises(ValueError, match="slow has 4 residues and the steps of 3"):
        protein_figures.writing_steps({"slow": ("ACDE", [0, 1, 2])})
    with pytest.raises(ValueError, match="at least one sequence"):
        protein_figures.writing_steps({})


def test_contact_maps_rank_scores_above_and_show_contacts_below():
    scores = symmetric_matrix(4)
    scores[0, 3] = scores[3, 0] = np.nan
    contact, resolved = np.zeros((4, 4), dtype=bool), np.ones((4, 4), dtype=bool)
    contact[2, 0] = contact[0, 2] = True
    resolved[3, 1] = resolved[1, 3] = False
    axes = protein_figures.contact_maps({"head": scores}, contact, resolved).axes[0]
    ranks, below = (image.get_array() for image in axes.images)
    # Five pairs are scored; the best has rank 1, the worst 0.
    pairs = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    best, worst = max(pairs, key=lambda pair: scores[pair]), min(pairs, key=lambda pair: scores[pair])
    assert sorted(map(tuple, np.argwhere(~ranks.mask))) == pairs and (ranks[best], ranks[worst]) == (1, 0)
    assert sorted(map(tuple, np.argwhere(~below.mask))) == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2)]
    assert below[2, 0] == 1 and below.sum() == 1


def test_contact_precision_has_a_point_for_each_method_and_cut_and_a_line_for_chance():
    rows = [
        {"method": method, "cut": cut, "value": value, "low": value - 0.1, "high": value + 0.2}
        for method, base in (("head", 0.3), ("chance", 0.1))
        for cut, value in (("L", base), ("L/5", base + 0.1 * (method == "head")))
    ]
    figure = protein_figures.contact_precision(pd.DataFrame(rows))
    (axes,) = figure.axes
    (container,) = axes.containers
    line, _, (bars,) = container.lines
    assert line.get_ydata().tolist() == [0.3, 0.4]
    assert [segment[:, 1].round(9).tolist() for segment in bars.get_segments()] == [[0.2, 0.5], [0.3, 0.6]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["L", "L/5"]
    assert [0.1, 0.1] in [list(line.get_ydata()) for line in axes.lines]
    assert sorted(legend_labels(figure)) == ["chance", "head"]


def test_variety_plot_carries_quality_variety_and_passes():
    rows = pd.DataFrame(
        {
            "family": ["naive", "naive", "sequential"],
            "label": ["naive", "naive", "sequential, random"],
            "passes": [10.2, 5.0, 75.0],
            "variety": [0.7, 0.6, 0.8],
            "value": [0.2, 0.3, 0.1],
            "low": [0.1, 0.25, 0.05],
            "high": [0.25, 0.35, 0.2],
        }
    )
    figure = protein_figures.quality_against_variety(rows, "distance", "divergence", natural=(0.85, 0.04))
    (axes,) = figure.axes
    curves = {line.get_label(): line for line in axes.lines}
    assert curves["naive"].get_xydata().tolist() == [[0.6, 0.3], [0.7, 0.2]]  # by rising passes
    assert curves["natural"].get_xydata().tolist() == [[0.85, 0.04]]
    assert curves["naive"].get_color() == figures.colour_of("naive")
    assert [text.get_text() for text in axes.texts] == ["5", "10", "75"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("distance", "divergence")
    assert {"naive", "sequential, random", "natural"} <= set(legend_labels(figure))
