"""Figures carry the data they were given; what is drawn, not how it looks."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import Rectangle

from maskmi import figures
from maskmi.sudoku import figures as sudoku_figures
from maskmi.sudoku.grid import relations
from maskmi.sudoku.text import parse_puzzle

SOLUTION = np.array([(3 * row + row // 3 + column) % 9 for row in range(9) for column in range(9)], np.uint8)
BLANKS = [0, 1, 9, 40, 80]
PUZZLE = SOLUTION.copy()
PUZZLE[BLANKS] = 9


def error_bars(axes):
    """{label: (x, y, low, high)} of the error-bar curves of a panel."""
    found = {}
    for container in axes.containers:
        assert isinstance(container, ErrorbarContainer)
        line, _, (bars,) = container.lines
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        found[container.get_label()] = (*(np.asarray(data, float) for data in line.get_data()), ends[:, 0], ends[:, 1])
    return found


def legend_labels(figure):
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def quality_rows():
    rows = [("sequential", 54, 62, "unique"), ("naive", 15, 52, "unique"), ("naive", 9, 37, "unique")]
    rows += [
        ("mi_guided", 15, 64, "unique"),
        ("sequential", 54, 90, "random removal"),
        ("naive", 15, 80, "random removal"),
    ]
    table = pd.DataFrame(rows, columns=["family", "passes", "value", "panel"])
    return table.assign(low=table["value"] - 3, high=table["value"] + 2)


def symmetric_matrix(seed=0):
    matrix = np.random.default_rng(seed).gamma(0.3, 0.3, (81, 81))
    matrix = matrix + matrix.T
    np.fill_diagonal(matrix, 0)
    return matrix


def test_save_gives_the_same_bytes_twice_and_makes_the_folder(tmp_path):
    def draw():
        return figures.calibration({"head": [{"predicted": 0.1, "true": 0.2, "n": 5}]})

    first = figures.save(draw(), tmp_path / "a" / "b", "calibration")
    second = figures.save(draw(), tmp_path, "again")
    assert first == tmp_path / "a" / "b" / "calibration.png"
    assert first.read_bytes() == second.read_bytes()
    height, width = plt.imread(first).shape[:2]
    assert (width, height) == tuple(round(150 * inches) for inches in draw().get_size_inches())
    assert [path.name for path in first.parent.iterdir()] == ["calibration.png"]


def test_pyplot_keeps_no_figure():
    before = plt.get_fignums()
    figures.calibration({"head": [{"predicted": 0.1, "true": 0.2, "n": 5}]})
    sudoku_figures.partners(symmetric_matrix(), PUZZLE, [0])
    assert plt.get_fignums() == before


def test_training_curve_skips_what_was_not_measured():
    log = pd.DataFrame({"grids": [1000, 2000, 3000], "loss": [2.0, 1.0, 0.5]})
    log = log.assign(puzzle_loss=[1.5, np.nan, 0.7], puzzle_accuracy=[0.25, np.nan, 0.75])
    left, right = figures.training_curve(log).axes
    assert left.lines[0].get_xydata().tolist() == [[1, 2.0], [2, 1.0], [3, 0.5]]
    assert left.lines[1].get_xydata().tolist() == [[1, 1.5], [3, 0.7]]
    assert right.lines[0].get_xydata().tolist() == [[1, 25], [3, 75]]


def test_calibration_shows_bins_beside_the_identity_also_below_zero():
    bins = [{"predicted": -0.002, "true": 0.0, "n": 10}, {"predicted": 1.5, "true": 1.25, "n": 10}]
    figure = figures.calibration({"head": bins, "zero": [{"predicted": 0.0, "true": 0.1, "n": 20}]})
    (axes,) = figure.axes
    identity, head, zero = axes.lines
    assert np.array_equal(identity.get_xdata(), identity.get_ydata())
    assert head.get_xydata().tolist() == [[-0.002, 0.0], [1.5, 1.25]]
    assert zero.get_xydata().tolist() == [[0.0, 0.1]]
    assert axes.get_xlim()[0] < -0.002 and axes.get_xlim()[1] > 1.5
    assert legend_labels(figure) == ["predicted = true", "head", "zero"]
    with pytest.raises(ValueError, match="at least one bin"):
        figures.calibration({"head": []})


def test_learning_curve_sorts_and_shares_the_score_axis():
    rows = pd.DataFrame({"contexts": [400, 100], "passes": [9000, 3000], "r2": [0.8, -0.5], "spearman": [0.9, 0.7]})
    left, right = figures.learning_curve(rows).axes
    assert left.lines[0].get_xydata().tolist() == [[100, -0.5], [400, 0.8]]
    assert right.lines[1].get_xydata().tolist() == [[3000, 0.7], [9000, 0.9]]
    assert left.get_ylim() == right.get_ylim() and left.get_ylim()[0] < -0.5


def test_quality_panels_carry_points_intervals_and_published_points():
    reference = pd.DataFrame({"family": ["naive"], "passes": [14.9], "value": [52.4], "panel": ["unique"]})
    figure = figures.quality_against_passes(quality_rows(), reference)
    unique, removal = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["unique", "random removal"]
    x, y, low, high = error_bars(unique)["naive"]
    assert (x.tolist(), y.tolist(), low.tolist(), high.tolist()) == ([9, 15], [37, 52], [34, 49], [39, 54])
    hollow = [line for line in unique.lines if to_hex(line.get_markerfacecolor()) == "#ffffff"]
    assert [line.get_xydata().tolist() for line in hollow] == [[[14.9, 52.4]]]
    assert to_hex(hollow[0].get_markeredgecolor()) == figures.colour_of("naive").lower()
    assert not [line for line in removal.lines if to_hex(line.get_markerfacecolor()) == "#ffffff"]
    (band,) = [patch for patch in unique.patches if isinstance(patch, Rectangle)]
    assert (band.get_y(), band.get_height()) == (59, 5)
    assert [62, 62] in [list(line.get_ydata()) for line in unique.lines]
    assert unique.get_xscale() == "log" and unique.get_ylim() == removal.get_ylim()
    assert legend_labels(figure) == ["sequential", "naive", "MI-guided", "published"]


def test_two_sequential_decoders_have_lines_of_their_own():
    rows = quality_rows().iloc[[0, 0, 1]].drop(columns="panel").assign(label=["least entropy", "random", "naive"])
    (axes,) = figures.quality_against_passes(rows).axes
    styles = {container.get_label(): container.lines[0].get_linestyle() for container in axes.containers}
    assert (styles["least entropy"], styles["random"]) == ("--", ":")


def test_labels_split_a_family_into_curves_of_its_colour():
    rows = quality_rows().drop(columns="panel").assign(label=["sequential", "a", "b", None, "sequential", "a"])
    (axes,) = figures.quality_against_passes(rows).axes
    assert set(error_bars(axes)) == {"sequential", "a", "b", "MI-guided"}
    line = {container.get_label(): container.lines[0] for container in axes.containers}
    assert line["a"].get_color() == line["b"].get_color() == figures.colour_of("naive")
    assert line["a"].get_linestyle() != line["b"].get_linestyle()


def test_families_differ_in_colour_and_marker():
    assert len({colour for _, colour, _ in figures.FAMILIES.values()}) == len(figures.FAMILIES)
    assert len({marker for _, _, marker in figures.FAMILIES.values()}) == len(figures.FAMILIES)
    assert figures.colour_of("a decoder of tomorrow") == figures.OTHER


def test_error_against_budget_shows_zero_and_negative_errors():
    rows = pd.DataFrame({"family": "mi_guided", "budget": [0.5, 0.0], "error": [0.2, -0.01]})
    (axes,) = figures.error_against_budget(rows.assign(low=[0.1, -0.03], high=[0.25, 0.01])).axes
    x, y, low, high = error_bars(axes)["MI-guided"]
    assert (x.tolist(), y.tolist()) == ([0, 0.5], [-0.01, 0.2])
    np.testing.assert_allclose([low, high], [[-0.03, 0.1], [0.01, 0.25]])
    assert axes.get_xlim()[0] < 0 and axes.get_ylim()[0] < -0.03
    (identity,) = [line for line in axes.lines if line.get_gid() == "identity"]
    assert np.array_equal(identity.get_xdata(), identity.get_ydata()) and identity.get_xdata().max() >= 0.5


@pytest.mark.parametrize(("weight", "symbol"), [("lam", "λ"), ("alpha", "α")])
def test_ablation_has_a_line_for_each_budget(weight, symbol):
    rows = pd.DataFrame({weight: [1.0, 0.0, 0.0], "value": [64, 60, 55], "low": [61, 57, 52], "high": [66, 62, 58]})
    figure = figures.ablation(rows.assign(passes=[15, 12, 9], line=["γ = 0.3", "γ = 0.3", "γ = 0.6"]))
    left, right = figure.axes
    x, y, low, high = error_bars(left)["γ = 0.3"]
    assert (x.tolist(), y.tolist(), low.tolist(), high.tolist()) == ([0, 1], [60, 64], [57, 61], [62, 66])
    assert [line.get_ydata().tolist() for line in right.lines] == [[12, 15], [9]]
    assert left.get_xlabel().startswith(symbol)
    assert legend_labels(figure) == ["γ = 0.3", "γ = 0.6"]


def test_errors_stand_at_the_number_of_masked_positions():
    rows = pd.DataFrame({"family": "naive", "blanks": [13.5, 4.5], "value": [0.2, -0.1], "members": [4, 3]})
    left, right = figures.error_by_blanks(rows.assign(low=[0.1, -0.2], high=[0.3, 0.0])).axes
    x, y, low, high = next(iter(error_bars(left).values()))
    assert (x.tolist(), y.tolist(), low.tolist(), high.tolist()) == ([4.5, 13.5], [-0.1, 0.2], [-0.2, 0.1], [0.0, 0.3])
    assert right.lines[0].get_ydata().tolist() == [3, 4]


def test_grade_split_groups_points_by_grade():
    rows = pd.DataFrame({"family": ["naive", "mi_guided"] * 2, "grade": ["easy", "easy", "hard", "hard"]})
    rows = rows.assign(value=[90, 95, 40, 50], low=[85, 91, 35, 45], high=[93, 98, 45, 55], n=[120, 120, 880, 880])
    (axes,) = figures.grade_split(rows).axes
    bars = error_bars(axes)
    assert bars["naive"][1].tolist() == [90, 40] and bars["MI-guided"][1].tolist() == [95, 50]
    assert np.round(bars["naive"][0]).tolist() == np.round(bars["MI-guided"][0]).tolist() == [0, 1]
    assert (bars["naive"][0] < bars["MI-guided"][0]).all()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["easy\nn = 120", "hard\nn = 880"]


def test_estimators_counts_every_pair_once():
    rng = np.random.default_rng(0)
    a = rng.gamma(0.2, 0.5, (40, 50))
    figure = figures.estimators(a, a - 0.005, ("mixture", "paper"))
    axes = figure.axes[0]
    (mesh,) = axes.collections
    assert mesh.get_array().sum() == a.size
    assert axes.get_xlim() == axes.get_ylim() and axes.get_xlim()[0] <= -0.005 and axes.get_xlim()[1] >= a.max()
    text = axes.get_title()
    assert text == "n = 2,000, Pearson 1.000, mean difference -0.005 nats"
    with pytest.raises(ValueError, match="finite and of equal"):
        figures.estimators([0.1, np.nan], [0.1, 0.2], ("a", "b"))


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="lacks low, high"):
        figures.quality_against_passes(quality_rows().drop(columns=["low", "high"]))
    with pytest.raises(ValueError, match="lacks rows"):
        figures.grade_split(quality_rows().assign(grade="easy").iloc[:0])


def test_mi_maps_share_one_scale_and_hide_visible_cells():
    big, small = symmetric_matrix(), symmetric_matrix(1) / 10
    figure = sudoku_figures.mi_maps({"probed": big, "head": small}, PUZZLE)
    images = [axes.images[0] for axes in figure.axes[:3]]
    blank_pairs = [(i, j) for i in BLANKS for j in BLANKS if i != j]
    top = max(big[pair] for pair in blank_pairs)
    assert {image.norm.vmin for image in images} == {0} and {image.norm.vmax for image in images} == {top}
    shown = images[1].get_array()
    assert sorted(map(tuple, np.argwhere(~shown.mask))) == sorted(blank_pairs)
    assert shown[0, 40] == small[0, 40]
    mask = images[2].get_array()
    assert mask[0, 1] == mask[0, 9] == top and mask[0, 40] == 0
    with pytest.raises(ValueError, match="two blanks"):
        sudoku_figures.mi_maps({"probed": big}, SOLUTION)
    with pytest.raises(ValueError, match="81, 81"):
        sudoku_figures.mi_maps({"probed": big[:9]}, PUZZLE)


def test_partners_colour_the_blanks_by_their_mi_with_the_chosen_cell():
    matrix = np.zeros((81, 81))
    matrix[0, 1] = matrix[1, 0] = 0.8
    matrix[0, 9] = matrix[9, 0] = 0.2  # by the square root half of the scale
    figure = sudoku_figures.partners(matrix, PUZZLE, [0, 40])
    first, second = figure.axes[:2]
    colours = first.images[0].get_array()
    assert colours[0, 1].tolist() == list(sudoku_figures.HEAT(1.0))
    assert colours[1, 0].tolist() == list(sudoku_figures.HEAT(0.5))
    assert colours[4, 4].tolist() == second.images[0].get_array()[0, 1].tolist() == list(sudoku_figures.HEAT(0.0))
    assert to_hex(colours[0, 2]) == sudoku_figures.VISIBLE.lower()
    assert [second.get_title(), len(second.texts)] == ["partners of r5c5", 81 - len(BLANKS)]
    with pytest.raises(ValueError, match=r"not of \[2\]"):
        sudoku_figures.partners(matrix, PUZZLE, [0, 2])


def test_mi_by_relation_shows_quantiles_and_auroc():
    matrix, kinds = symmetric_matrix(), relations()
    values = {"row": matrix[kinds[..., 0]], "no unit": matrix[~kinds.any(-1)], "box": np.array([])}
    left, right = sudoku_figures.mi_by_relation(values, {"row": 0.9, "box": 0.4}).axes
    row, none = left.lines
    assert np.interp(0.5, row.get_ydata(), row.get_xdata()) == pytest.approx(np.median(values["row"]))
    assert (row.get_xdata()[0], row.get_xdata()[-1]) == (values["row"].min(), values["row"].max())
    assert none.get_xdata()[-1] == values["no unit"].max()
    assert [bar.get_x() + bar.get_width() for bar in right.patches] == pytest.approx([0.9, 0.4])
    assert [label.get_text() for label in right.get_yticklabels()] == ["row", "box"]
    with pytest.raises(ValueError, match="diagonal"):
        sudoku_figures.mi_by_relation({"diagonal": [0.1]}, {})


def test_decoding_steps_marks_steps_and_wrong_digits():
    right = pd.DataFrame({"step": range(5), "position": BLANKS, "value": SOLUTION[BLANKS], "entropy": 0.1})
    wrong = right.assign(step=[0, 0, 1, 1, 1], value=[*SOLUTION[BLANKS[:4]], (SOLUTION[80] + 1) % 9])
    runs = {"sequential": right, "MI-guided": wrong}
    figure = sudoku_figures.decoding_steps(
        PUZZLE, SOLUTION, runs, passes={"sequential": 5, "MI-guided": 3}, snapshots=4
    )
    first, *snapshots, second, one, two, _ = figure.axes
    assert [axes.get_xlabel() for axes in (first, second)] == [
        "5 steps, 5 passes, none wrong",
        "2 steps, 3 passes, 1 wrong",
    ]
    assert len(snapshots) == 4
    assert [axes.get_title() for axes in (one, two)] == ["step 1: +2", "step 2: +3"]
    colours = second.images[0].get_array()
    assert colours[0, 0].tolist() == list(sudoku_figures.STEPS(0.0))
    assert colours[8, 8].tolist() == list(sudoku_figures.STEPS(1.0))
    assert (one.images[0].get_array()[8, 8] == 1).all()  # still blank
    red = [text for text in second.texts if text.get_color() == sudoku_figures.WRONG]
    assert [(text.get_position(), text.get_text()) for text in red] == [((8, 8), str((SOLUTION[80] + 1) % 9 + 1))]
    with pytest.raises(ValueError, match="committed nothing"):
        sudoku_figures.decoding_steps(PUZZLE, SOLUTION, {"sequential": right.iloc[:0]})


def test_the_last_commitment_of_a_position_counts():
    trace = pd.DataFrame({"step": [2, 0, 1], "position": [0, 0, 1], "value": [SOLUTION[0], 5, SOLUTION[1]]})
    board = sudoku_figures.decoding_steps(PUZZLE, SOLUTION, {"remasking": trace}, snapshots=2).axes[0]
    assert board.get_xlabel() == "3 steps, 3 passes, none wrong"
    assert board.images[0].get_array()[0, 0].tolist() == list(sudoku_figures.STEPS(1.0))


def test_grids_are_checked():
    with pytest.raises(ValueError, match="81 cells"):
        sudoku_figures.partners(symmetric_matrix(), parse_puzzle("." * 81)[:80], [0])
