import numpy as np
import pytest

from maskmi import metrics


def test_wilson_interval_against_the_formula():
    # z = 1.959964; centre (p + z²/2n) / (1 + z²/n), worked by hand for 8 of 10
    interval = metrics.wilson_interval(8, 10)
    assert interval == pytest.approx((0.8, 0.490162, 0.943318), abs=1e-5)


@pytest.mark.parametrize("successes", [0, 7])
def test_wilson_interval_holds_its_value_at_the_ends(successes):
    value, low, high = metrics.wilson_interval(successes, 7)
    assert 0 <= low <= value <= high <= 1 and low < high


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (3, 2), (-1, 2)])
def test_wilson_interval_refuses_what_is_no_rate(successes, n):
    with pytest.raises(ValueError, match="successes"):
        metrics.wilson_interval(successes, n)


def test_bootstrap_interval_covers_like_the_normal_one_and_repeats():
    values = np.random.default_rng(3).normal(2, 1, 400)
    interval = metrics.bootstrap_interval(values, seed=1)
    half = 1.96 * values.std() / 20
    assert interval.value == pytest.approx(values.mean())
    assert (interval.low, interval.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)
    assert metrics.bootstrap_interval(values, seed=1) == interval != metrics.bootstrap_interval(values, seed=2)


def test_bootstrap_interval_of_equal_values_is_a_point_and_nan_is_refused():
    assert metrics.bootstrap_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="finite"):
        metrics.bootstrap_interval([1.0, np.nan])


def test_mcnemar_counts_only_the_discordant():
    # 5 against 1 discordant of 6: two-sided exact p = 2 (1 + 6) / 64
    first = np.array([1] * 5 + [0] + [1] * 20 + [0] * 4, dtype=bool)
    second = np.array([0] * 5 + [1] + [1] * 20 + [0] * 4, dtype=bool)
    assert metrics.mcnemar(first, second) == pytest.approx(14 / 64)
    assert metrics.mcnemar(first, first) == 1.0
    with pytest.raises(ValueError, match="true or false"):
        metrics.mcnemar([0.3, 1], [0, 1])


def test_paired_difference_is_narrower_than_unpaired_rates_would_be():
    rng = np.random.default_rng(0)
    second = rng.random(500) < 0.5
    first = second | (rng.random(500) < 0.1)
    interval = metrics.paired_difference(first, second)
    assert interval.value == pytest.approx(first.mean() - second.mean())
    assert 0 < interval.low < interval.value < interval.high < 0.1
    with pytest.raises(ValueError, match="one length"):
        metrics.paired_difference([1, 0], [1, 0, 1])


def test_auroc_with_a_tie():
    # pairs: .9>.5, .9>.1, .5=.5 (half), .5>.1: 3.5 of 4
    assert metrics.auroc([0.9, 0.5, 0.5, 0.1], [1, 1, 0, 0]) == pytest.approx(3.5 / 4)
    with pytest.raises(ValueError, match="both"):
        metrics.auroc([0.1, 0.2], [1, 1])


def test_calibration_sorts_by_prediction_and_fills_bins_evenly():
    bins = metrics.calibration([3, 1, 2, 0], [30, 10, 20, 0], bins=2)
    assert bins == [{"predicted": 0.5, "true": 5.0, "n": 2}, {"predicted": 2.5, "true": 25.0, "n": 2}]


def test_regression_scores_by_hand_and_undefined_ones_left_out():
    scores = metrics.regression_scores([1, 2, 4], [1, 2, 3])
    # residual 1, spread 2: R² = 1 - 1/2; ranks agree
    assert scores["r2"] == pytest.approx(0.5) and scores["spearman"] == pytest.approx(1)
    assert scores["mae_nats"] == pytest.approx(1 / 3) and scores["pearson"] == pytest.approx(0.98198, abs=1e-5)
    assert set(metrics.regression_scores([0, 0, 0], [1, 2, 3])) == {"mae_nats", "r2"}
