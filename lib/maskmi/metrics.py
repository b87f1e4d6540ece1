"""Intervals, paired tests and scores that the study reports. Intervals are at 95 % unless told otherwise."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from sklearn.metrics import r2_score, roc_auc_score


class Interval(NamedTuple):
    """An estimate with the bounds of its confidence interval; ``_asdict()`` is its form in the statistics file."""

    value: float
    low: float
    high: float


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Rate ``successes / n`` with its Wilson score interval."""
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"a rate needs 0 <= successes <= n and n > 0, not {successes} of {n}")
    bounds = stats.binomtest(int(successes), int(n)).proportion_ci(level, method="wilson")
    # Rounding can put a bound 1e-17 beyond a rate of exactly 0 or 1.
    rate = successes / n
    return Interval(rate, min(float(bounds.low), rate), max(float(bounds.high), rate))


def bootstrap_interval(
    values: ArrayLike, statistic=np.mean, seed: int = 0, n_resamples: int = 2000, level: float = 0.95
) -> Interval:
    """``statistic`` of ``values`` [n] with a percentile bootstrap interval over the n values.

    ``statistic`` takes ``axis``. Values that belong together (pairs of one context) must be averaged first: the
    bootstrap takes the n as independent.
    """
    values = _finite(values, "values")
    value = float(statistic(values, axis=-1))
    if len(values) == 1 or np.ptp(values) == 0:
        return Interval(value, value, value)  # resampling can't move it
    bounds = stats.bootstrap(
        (values,),
        statistic,
        n_resamples=n_resamples,
        batch=max(1, 2_000_000 // len(values)),  # bounds the memory of a batch of resamples
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(value, float(bounds.low), float(bounds.high))


def paired_difference(first: ArrayLike, second: ArrayLike, seed: int = 0, n_resamples: int = 2000) -> Interval:
    """Mean of ``first - second`` over the same ``n`` sequences, with a bootstrap interval over the sequences."""
    first, second = _pair(first, second)
    return bootstrap_interval(first - second, seed=seed, n_resamples=n_resamples)


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """Two-sided exact McNemar p-value for two boolean outcomes of the same ``n`` sequences."""
    first, second = _pair(first, second)
    if not np.isin(first, (0, 1)).all() or not np.isin(second, (0, 1)).all():
        raise ValueError("McNemar's test compares outcomes that are true or false")
    only_first, only_second = int((first > second).sum()), int((first < second).sum())
    discordant = only_first + only_second
    return float(stats.binomtest(only_first, discordant).pvalue) if discordant else 1.0


def auroc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Area under the ROC curve of ``scores`` for boolean ``labels``; ties count half."""
    scores, labels = _pair(scores, labels)
    if len(np.unique(labels)) != 2:
        raise ValueError("an AUROC needs both positive and negative labels")
    return float(roc_auc_score(labels.astype(bool), scores))


def calibration(predicted: ArrayLike, true: ArrayLike, bins: int = 10) -> list[dict[str, float]]:
    """Means of predicted and true values in ``bins`` equally filled groups by rising prediction (deciles)."""
    predicted, true = _pair(predicted, true)
    if len(predicted) < bins:
        raise ValueError(f"{len(predicted)} values cannot fill {bins} bins")
    groups = np.array_split(np.argsort(predicted, kind="stable"), bins)
    return [
        {"predicted": float(predicted[group].mean()), "true": float(true[group].mean()), "n": len(group)}
        for group in groups
    ]


def regression_scores(predicted: ArrayLike, true: ArrayLike) -> dict[str, float]:
    """R², Pearson, Spearman and mean absolute error (``mae_nats``) of predicted values [n].

    What is undefined is left out: correlations where one side is constant, R² where ``true`` is.
    """
    predicted, true = _pair(predicted, true)
    scores = {"mae_nats": float(np.abs(predicted - true).mean())}
    if np.ptp(true) > 0:
        scores["r2"] = float(r2_score(true, predicted))
        if np.ptp(predicted) > 0:
            scores["pearson"] = float(stats.pearsonr(predicted, true).statistic)
            scores["spearman"] = float(stats.spearmanr(predicted, true).statistic)
    return scores


def _finite(values: ArrayLike, what: str) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ValueError(f"{what} must be a non-empty one-dimensional array of finite numbers")
    return values


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    first, second = _finite(first, "the first values"), _finite(second, "the second values")
    if len(first) != len(second):
        raise ValueError(f"the two sides must be of one length, not {len(first)} and {len(second)}")
    return first, second
