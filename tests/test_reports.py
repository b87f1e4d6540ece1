"""Reports on matrices, heads, baselines and decoders: values worked out by hand on made-up data."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maskmi import reports
from maskmi.baselines import at_pairs, attention_features, mean_by_relation, pair_index, regression, relation_classes
from maskmi.metrics import wilson_interval
from maskmi.model import Output
from maskmi.settings import is_main
from maskmi.sudoku import constraints, decoding_reports
from maskmi.sudoku.evaluation import likelihood_bound, solved_by_grade
from maskmi.sudoku.grading import GRADES
from maskmi.sudoku.grid import relations
from maskmi.sudoku.solver import random_grids

FLAGS = torch.as_tensor(relations())
ALL = (~torch.eye(81, dtype=torch.bool)).expand(2, 81, 81)
BOUNDED = {"decoder": "entropy_bounded", "budget": 0.2, "proxy": "entropy", "test_set": "unique"}
MI = {"decoder": "mi_guided", "budget": 0.3, "lam": 1.0, "alpha": 1.0, "reading": "cumulative", "order": "entropy"}
MI |= {"matrix": "head", "test_set": "unique"}


def outcome(solved, passes, errors=()):
    """As study.decoded gives it, for as many puzzles as there are in ``solved``; each takes ``passes``."""
    n = len(solved)
    return {
        "solved": torch.tensor(solved, dtype=torch.bool),
        "violations": torch.tensor([0 if s else 2 for s in solved]),
        "passes": torch.as_tensor(passes).expand(n),
        "matrix_passes": torch.zeros(n, dtype=torch.int64),
        "steps": torch.as_tensor(passes).expand(n),
        "batched_calls": torch.tensor(3),
        "seconds": torch.tensor(0.5, dtype=torch.float64),
        "joint_error": torch.tensor(errors, dtype=torch.float64),
    }


def test_joint_errors_are_averaged_by_the_blanks_before_the_step():
    found = outcome([True], 3, errors=[0.5, 0.1, 0.3, np.inf])
    found |= {"joint_left": torch.tensor([20, 17, 10, 12]), "joint_members": torch.tensor([6, 2, 4, 9])}
    table = decoding_reports.error_by_blanks([(BOUNDED, found)])
    assert table.blanks.tolist() == [13.5, 22.5]  # 9 to 17 blanks and 18 to 26
    assert table.value.tolist() == pytest.approx([0.2, 0.5])
    assert table.members.tolist() == [3, 6] and table.steps.tolist() == [2, 1]
    assert (table.low <= table.value).all() and (table.value <= table.high).all()


# Matrices


def test_pairs_are_sorted_by_the_units_that_they_share():
    parts = constraints.by_relation(torch.ones(2, 81, 81), ALL)
    # 81 cells with 8 others in each unit; of the 20 neighbours 4 share box and row, or box and column.
    by_hand = {"row": 81 * 6, "column": 81 * 6, "box": 81 * 4, "several units": 81 * 4, "no unit": 81 * 60}
    assert {name: len(values) for name, values in parts.items()} == by_hand  # halved (i < j), for two contexts


def test_a_matrix_of_the_units_is_told_apart_perfectly():
    scores = constraints.structure_scores(FLAGS.any(-1).double().expand(2, 81, 81), ALL)
    assert scores["auroc"] == {"row": 1.0, "column": 1.0, "box": 1.0, "any": 1.0}
    assert scores["mass_share"] == 1.0
    assert scores["pair_share"] == pytest.approx(20 / 80)


def test_a_matrix_of_rows_alone_says_little_of_columns():
    scores = constraints.structure_scores(FLAGS[..., 0].double().expand(2, 81, 81), ALL)
    assert scores["auroc"]["row"] == 1.0
    assert scores["auroc"]["column"] == 0.5  # no pair of one column shares a row
    assert scores["auroc"]["box"] == pytest.approx(2 / 8 + 6 / 8 / 2)  # 2 of the 8 others in a box share the row


def test_a_random_matrix_has_no_structure():
    matrix = torch.rand(2, 81, 81, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = constraints.structure_scores(matrix, ALL)
    assert all(abs(value - 0.5) < 0.05 for value in scores["auroc"].values())
    assert scores["mass_share"] == pytest.approx(scores["pair_share"], abs=0.02)


def test_negative_values_have_no_mass_and_unknown_pairs_do_not_count():
    matrix = FLAGS.any(-1).double().expand(2, 81, 81) - 0.5
    known = ALL.clone()
    known[1] = False
    matrix = matrix.clone()
    matrix[1] = torch.nan
    assert constraints.structure_scores(matrix, known)["mass_share"] == 1.0


def test_label_noise_is_what_two_directions_disagree_by():
    directed = torch.zeros(1, 3, 3, dtype=torch.float64)
    directed[0, 0, 1], directed[0, 1, 0] = 1.0, 3.0  # mean 2, half difference 1
    directed[0, 0, 2], directed[0, 2, 0] = 4.0, 4.0  # mean 4, half difference 0
    directed[0, 1, 2] = 100.0  # the other direction is not known
    known = ~torch.eye(3, dtype=torch.bool)[None]
    known[0, 2, 1] = False
    noise = reports.label_noise(directed, known)
    # Directed values 1, 4, 3, 4 (mean 3, squares 4 + 1 + 0 + 1); the means miss them by 1, 0, 1, 0.
    assert noise["symmetric_r2"] == pytest.approx(1 - 2 / 6)
    assert noise["noise_share"] == pytest.approx(0.5 / 1.0)
    # Both ways: (1, 3), (4, 4), (3, 1), (4, 4), with mean 3 and variance 6 / 4; products of deviations 0, 1, 0, 1.
    assert noise["direction_pearson"] == pytest.approx((2 / 4) / (6 / 4))


def test_no_noise_in_symmetric_labels():
    matrix = torch.rand(2, 81, 81, generator=torch.Generator().manual_seed(0))
    noise = reports.label_noise(matrix + matrix.mT, ALL)
    one = pytest.approx(1.0)
    assert noise == {
        "symmetric_r2": one,
        "noise_share": pytest.approx(0.0),
        "direction_pearson": one,
        "direction_spearman": one,
    }


def test_the_probing_section_takes_speeds_only_of_the_same_backbone(tmp_path):
    report = {"mean_asymmetry": 0.1, "negative_share": 0.2, "mean_negative_size": None, "mean_kl": 0.3}
    report |= {"mean_mi": 0.4, "correlation": 0.5}
    section = reports.probing_section(report, 7, "abc", tmp_path / "missing.json")
    assert section["contexts"] == 7 and section["mean_mi_nats"] == 0.4
    assert "negative_size_nats" not in section and "speedup_over_loop" not in section
    (tmp_path / "other.json").write_text('{"backbone_sha256": "def"}')
    assert reports.probing_section(report, 7, "abc", tmp_path / "other.json") == section


# Baselines


def test_pairs_come_once_in_order():
    known = ~torch.eye(3, dtype=torch.bool).expand(2, 3, 3)
    known = known.clone()
    known[1, 0, 1] = known[1, 1, 0] = False
    assert torch.stack(pair_index(known), 1).tolist() == [[0, 0, 1], [0, 0, 2], [0, 1, 2], [1, 0, 2], [1, 1, 2]]
    matrix = torch.arange(18.0).view(2, 3, 3)
    assert at_pairs(matrix, known).tolist() == [1, 2, 5, 11, 14]


def test_each_combination_of_relations_is_a_class():
    classes = relation_classes(FLAGS)
    # From the first cell: its own row and box, its row alone, column and box, box alone, nothing.
    assert classes[0, [1, 3, 9, 10, 40]].tolist() == [0b101, 0b001, 0b110, 0b100, 0]
    assert classes.equal(classes.mT) and classes[0, 0] == 0


def test_the_mean_of_a_relation_is_predicted_and_the_overall_mean_of_one_never_seen():
    known = torch.zeros(1, 4, 4, dtype=torch.bool)
    known[0, 0, 1:] = True
    classes = torch.tensor([[0, 1, 1, 0], [1, 0, 2, 5], [1, 2, 0, 1], [0, 5, 1, 0]])
    train = (np.array([1.0, 2.0, 6.0]), known)  # pairs 01, 02, 03 of the classes 1, 1, 0
    wanted = ~torch.eye(4, dtype=torch.bool)[None]
    predicted = mean_by_relation(train, wanted, classes)
    # Pairs 01, 02, 03, 12, 13, 23: the classes 2 and 5 were never seen.
    assert predicted.tolist() == [1.5, 1.5, 6.0, 3.0, 3.0, 1.5]


def test_regression_recovers_a_linear_law():
    rng = np.random.default_rng(0)
    features, new = rng.normal(size=(50, 3)), rng.normal(size=(5, 3))
    law = np.array([2.0, -1.0, 0.5])
    assert np.allclose(regression(features, features @ law + 3, new), new @ law + 3)


def test_attention_is_made_symmetric_for_every_layer_and_head():
    def model(tokens, attention=False):
        assert attention
        base = torch.arange(2 * 3 * 4 * 4.0).view(1, 2, 3, 4, 4)
        return Output(torch.zeros(0), torch.zeros(0), base * tokens[:, :1, None, None, None])

    tokens = torch.tensor([[1] * 4, [2] * 4, [3] * 4])
    known = torch.zeros(3, 4, 4, dtype=torch.bool)
    known[1, 0, 3] = known[1, 3, 0] = known[2, 0, 1] = True
    features = attention_features(model, tokens, known, batch_size=2)
    assert features.shape == (2, 2, 3)
    # Layer 1, head 2 begins at 80: the entries (0, 3) and (3, 0) are 83 and 92.
    assert features[0, 1, 2] == 2 * (83 + 92) / 2
    assert features[1, 0, 0] == 3 * (1 + 4) / 2


# The model


def test_share_solved_by_grade():
    table = solved_by_grade(torch.tensor([True, False, True, True, False]), np.array([0, 0, 0, 2, 2]))
    assert table["grade"].tolist() == ["easy", "hard"] and table["n"].tolist() == [3, 2]
    assert table["value"].tolist() == pytest.approx([200 / 3, 50])
    assert table.loc[0, ["low", "high"]].tolist() == pytest.approx([100 * x for x in wilson_interval(2, 3)[1:]])


def test_a_model_that_knows_only_the_nine_digits_has_the_bound_81_log_9():
    calls = []

    class Uniform:
        values = "123456789"

        def __call__(self, tokens):
            calls.append((tokens == 9).sum(1).tolist())
            return SimpleNamespace(logits=torch.zeros(*tokens.shape, 9))

    bounds = likelihood_bound(Uniform(), random_grids(2, 5), 0)
    assert bounds == pytest.approx([81 * np.log(9)] * 2, rel=1e-6)
    assert calls == [list(range(1, 82))] * 2


# Decoders


def test_the_frame_of_a_sweep_has_a_row_a_setting():
    results = [
        (BOUNDED, outcome([True, True, False, True], 10, [0.1, 0.3, float("inf")])),
        (MI | {"lam": 2.0}, outcome([True] * 4, 12)),
    ]
    frame = decoding_reports.decoding_frame(results)
    assert frame["family"].tolist() == ["entropy_bounded", "mi_guided"]
    assert frame["label"].tolist() == ["EB", "MI (head) λ=2"]
    assert frame["panel"].tolist() == ["unique", "unique"] and frame["main"].tolist() == [True, False]
    assert frame["passes"].tolist() == [10, 12] and frame["n"].tolist() == [4, 4]
    assert frame["value"].tolist() == [75, 100] and frame["budget"].tolist() == [0.2, 0.3]
    assert frame.loc[0, "low"] == pytest.approx(100 * wilson_interval(3, 4).low)
    assert frame.loc[0, "error"] == pytest.approx(0.2) and np.isnan(frame.loc[1, "error"])
    assert frame["lam"].isna().tolist() == [True, False]


@pytest.mark.parametrize(
    ("settings", "main"),
    [
        ({"decoder": "naive", "k": 4}, True),
        (BOUNDED, True),
        (BOUNDED | {"proxy": "margin"}, False),
        (MI, True),
        (MI | {"matrix": "probed"}, True),
        (MI | {"matrix": "head: mixture"}, False),
        (MI | {"alpha": 0.1}, False),
        (MI | {"reading": "threshold"}, False),
    ],
)
def test_the_main_figures_leave_ablations_out(settings, main):
    assert is_main(settings) is main


def test_shares_by_grade_for_each_setting(monkeypatch):
    grades = np.array([0, 0, 3, 3, 1])
    monkeypatch.setattr(decoding_reports, "puzzle_set", lambda name, n: SimpleNamespace(grades=grades[:n]))
    results = [(BOUNDED, outcome([True, False, True, True, False], 9)), (MI, outcome([True, True, False], 9))]
    table = decoding_reports.by_grade(results, 5)
    rows = list(table[["family", "label", "grade", "value", "n"]].itertuples(index=False, name=None))
    assert rows == [
        ("entropy_bounded", "EB γ=0.2", "easy", 50, 2),
        ("entropy_bounded", "EB γ=0.2", "medium", 0, 1),
        ("entropy_bounded", "EB γ=0.2", "guessing", 100, 2),
        ("mi_guided", "MI (head) γ=0.3", "easy", 100, 2),
        ("mi_guided", "MI (head) γ=0.3", "guessing", 0, 1),
    ]
    assert set(table["grade"]) <= set(GRADES)
    assert decoding_reports.by_grade([], 5).empty


def test_a_statistics_row_carries_the_papers_figures_where_it_has_some():
    row = decoding_reports.statistics_row(BOUNDED, outcome([True] * 4, 15))
    assert row["headline"] is True and row["paper"] == {"passes": 15.3, "solved": 0.610}
    on_random = decoding_reports.statistics_row(BOUNDED | {"test_set": "random"}, outcome([True] * 4, 15))
    assert on_random["headline"] is True and "paper" not in on_random  # the paper's puzzles have one solution
    large = decoding_reports.statistics_row(BOUNDED, outcome([True] * 1001, 15))
    other = decoding_reports.statistics_row(BOUNDED | {"budget": 0.3}, outcome([True] * 4, 15))
    assert not {"headline", "paper"} & (large.keys() | other.keys())


@pytest.mark.parametrize(("passes", "words"), [(20, "equal"), (20.5, "its most")])
def test_a_comparison_says_where_on_entropy_boundings_curve_it_is(passes, words):
    curve = [(BOUNDED, outcome([True, False, False, False], 10)), (BOUNDED, outcome([True, True, False, False], 20))]
    (row,) = decoding_reports.against_entropy_bounded([*curve, (MI, outcome([True] * 4, passes))]).to_dict("records")
    assert row["against"] == f"entropy bounding at {words} passes"


def test_mi_guided_is_compared_on_each_set_with_entropy_bounding_by_entropy():
    half, most = [True, False], [True, True]
    results = []
    for name in ("unique", "random"):
        on = {"test_set": name}
        results += [(BOUNDED | on, outcome(half, 10)), (BOUNDED | on, outcome(half, 20))]
        results += [(BOUNDED | on | {"proxy": "margin"}, outcome(most, 15))]
        results += [(MI | on, outcome(most, 15)), (MI | on | {"matrix": "probed"}, outcome([True], 15))]
    table = decoding_reports.against_entropy_bounded(results)
    assert table["set"].tolist() == ["unique", "random"]  # the oracle saw fewer puzzles, so it has no pairs
    assert table["difference"].tolist() == pytest.approx([0.5, 0.5]) and table["temperature"].tolist() == [0, 0]


def test_the_oracle_is_compared_with_the_head_on_its_own_puzzles():
    oracle = MI | {"matrix": "probed"}
    results = [(MI, outcome([True, False, True, True], 12)), (oracle, outcome([True, True], 10))]
    results += [(oracle | {"budget": 0.6}, outcome([True, True], 8))]  # the head was not run at this budget
    (row,) = decoding_reports.oracle_against_head(results).to_dict("records")
    assert (row["decoder"], row["against"]) == ("MI (probed) γ=0.3", "MI (head) γ=0.3")
    assert (row["n"], row["passes"], row["reference_passes"]) == (2, 10, 12)
    assert (row["solved"], row["reference"], row["difference"]) == (1.0, 0.5, 0.5)
    assert row["low"] <= 0.5 <= row["high"] and row["p_value"] == 1
