"""Many decoders counted fairly: settings are chosen on one set of sequences and judged on another.

Decoders compete as *contenders* (:func:`maskmi.settings.contender_of`), each with the settings of its sweep. The
functions read the results of :func:`maskmi.study.run_sweep`. A *score* says what an outcome is worth, a number for each
sequence, the larger the better: the name of what the study's judge keeps of it, or a function of the outcome. Outcomes
of one set of states cover its first sequences, fewer where a decoder is dear; they are paired over what both cover.

What only a whole set of sequences is worth, such as how near samples are to natural ones, is a :class:`SetScore`: it
brings its own intervals. Sets are then to be compared at one size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from maskmi.metrics import Interval, bootstrap_interval, mcnemar, paired_difference, wilson_interval
from maskmi.settings import contender_of, family_of, label_of
from maskmi.study import Results, decoding_row

Outcome = Mapping[str, Tensor]
Score = str | Callable[[Outcome], Tensor]
NO_CAP = math.inf


class SetScore(Protocol):
    """What the sequences of an outcome are worth together, the larger the better, with 95 % intervals."""

    def interval(self, outcome: Outcome) -> Interval:
        """The score of all sequences of an outcome."""

    def difference(self, one: Outcome, other: Outcome) -> Interval:
        """The score of ``one`` less that of ``other``, of the first sequences, as many as both have."""


def scores_of(outcome: Outcome, score: Score) -> NDArray[np.float64]:
    """What each sequence [N] of an outcome is worth.

    Raises:
        ValueError: where the outcome has nothing of that name, or not a finite number a sequence.
    """
    if isinstance(score, str) and score not in outcome:
        raise ValueError(f"the outcome has no score {score!r}; it has {', '.join(sorted(outcome))}")
    found = (outcome[score] if isinstance(score, str) else score(outcome)).double().numpy()
    if found.shape != (len(outcome["passes"]),) or not np.isfinite(found).all():
        raise ValueError(f"a score must be one finite number a sequence, not {list(found.shape)} with gaps or NaN")
    return found


def interval_of(outcome: Outcome, score: Score | SetScore) -> Interval:
    """The score of an outcome, or its mean over sequences (95 %; Wilson's for scores of 0 and 1, else bootstrap)."""
    if hasattr(score, "interval"):
        return score.interval(outcome)
    found = scores_of(outcome, score)
    two_valued = np.isin(found, (0, 1)).all()
    return wilson_interval(int(found.sum()), len(found)) if two_valued else bootstrap_interval(found)


def sweep_table(results: Results, score: Score | SetScore) -> pd.DataFrame:
    """One row a setting, in order: what it is, what it cost and what it was worth, for figures and for choosing.

    Columns: ``contender``, ``family``, ``label`` (the setting), ``n``; means over the sequences ``passes``, ``steps``,
    ``seconds`` (wall time over n); ``calls`` (of the network, for all n together); ``value``, ``low`` and ``high`` of
    :func:`interval_of`.
    """
    rows = []
    for settings, outcome in results:
        n = len(outcome["passes"])
        names = {"contender": contender_of(settings), "family": family_of(settings), "label": label_of(settings)}
        costs = {key: outcome[key].double().mean().item() for key in ("passes", "steps")}
        costs |= {"seconds": outcome["seconds"].item() / n, "calls": int(outcome["batched_calls"])}
        rows.append({**names, "n": n, **costs, **interval_of(outcome, score)._asdict()})
    return pd.DataFrame(rows)


def frontier(cost: ArrayLike, value: ArrayLike) -> NDArray[np.bool_]:
    """Which points [n] are on the Pareto frontier: none costs at most as much and is worth at least as much, and is
    better in one of the two. Equal points are on it together."""
    cost, value = np.asarray(cost, float), np.asarray(value, float)
    if cost.shape != value.shape or cost.ndim != 1 or not np.isfinite([cost, value]).all():
        raise ValueError("a frontier needs as many costs as values [n], all finite")
    no_worse = (cost[None, :] <= cost[:, None]) & (value[None, :] >= value[:, None])
    better = (cost[None, :] < cost[:, None]) | (value[None, :] > value[:, None])
    return ~(no_worse & better).any(1)


def best_rows(table: pd.DataFrame, cost: str = "passes") -> pd.DataFrame:
    """The rows of :func:`sweep_table` on the Pareto frontier, by rising ``cost``.

    Only settings on as many sequences as any compete: a few sequences may be easier ones.
    """
    whole = table[table.n == table.n.max()]
    return whole[frontier(whole[cost], whole.value)].sort_values(cost)


def choose(table: pd.DataFrame, caps: Sequence[float]) -> pd.DataFrame:
    """For every contender its best setting of at most so many mean passes: one row a contender and cap that it keeps.

    A contender that keeps none of the ``caps`` has its best setting at any number of passes, with the cap ``NO_CAP``.

    Args:
        table: of :func:`sweep_table`, on the sequences that settings are chosen on.
        caps: mean passes.

    Returns:
        Columns ``contender``, ``cap``, ``row`` (in the table). Best is the largest mean score; of equal ones that of
        fewer passes, then the earlier one.
    """
    chosen = []
    for contender, rows in table.groupby("contender", sort=False):
        for cap in [cap for cap in caps if rows.passes.min() <= cap] or [NO_CAP]:
            within = rows[rows.passes <= cap].sort_values(["value", "passes"], ascending=[False, True], kind="stable")
            chosen.append({"contender": contender, "cap": cap, "row": within.index[0]})
    return pd.DataFrame(chosen, columns=["contender", "cap", "row"])


def against(
    chosen: pd.DataFrame, results: Sequence[tuple[dict, dict] | None], reference: str, score: Score | SetScore
) -> pd.DataFrame:
    """Every choice beside the reference contender's choice under the same cap, over the sequences that both decoded.

    A choice without a cap is held against the reference's under its highest.

    Args:
        chosen: of :func:`choose`.
        results: what each row of the sweep came to on the sequences that are reported, None where it was not run.
        reference: the contender that all are held against.

    Returns:
        A table with ``contender``, ``cap``, ``label``, ``n``, ``passes``, ``value``, ``low``, ``high`` (of its own),
        ``reference`` (its label), ``reference_passes``, ``difference`` with ``difference_low`` and ``difference_high``
        (contender less reference; paired bootstrap, 95 %, or a set score's own) and, for scores of 0 and 1, McNemar's
        ``p_value``. The last six are missing where the reference has no choice under that cap.
    """
    columns = ["label", "n", "passes", "value", "low", "high"]
    of_reference = {row.cap: row.row for row in chosen.itertuples() if row.contender == reference}
    rows = []
    for choice in chosen.itertuples():
        result = results[choice.row]
        own = sweep_table([result], score).iloc[0]
        row = {"contender": choice.contender, "cap": choice.cap, **own[columns]}
        cap = max(of_reference, default=None) if choice.cap == NO_CAP else choice.cap
        if cap in of_reference:
            row |= _paired(result, results[of_reference[cap]], score)
        rows.append(row)
    return pd.DataFrame(rows)


def _paired(one: tuple[dict, dict], other: tuple[dict, dict], score: Score | SetScore) -> dict[str, Any]:
    n = min(len(outcome["passes"]) for _, outcome in (one, other))
    if hasattr(score, "difference"):
        difference, tested = score.difference(one[1], other[1]), {}
    else:
        mine, theirs = (scores_of(outcome, score)[:n] for _, outcome in (one, other))
        difference = paired_difference(mine, theirs)
        two_valued = np.isin(np.concatenate([mine, theirs]), (0, 1)).all()
        tested = {"p_value": mcnemar(mine, theirs)} if two_valued else {}
    row = {"reference": label_of(other[0]), "reference_passes": other[1]["passes"][:n].double().mean().item()}
    row |= dict(zip(("difference", "difference_low", "difference_high"), difference, strict=True))
    return row | tested


def negated(table: pd.DataFrame) -> pd.DataFrame:
    """A table of :func:`sweep_table` or :func:`against` with values and differences of the other sign, for scores that
    are the negative of what a reader knows; lower and upper bounds change places."""
    table = table.copy()
    for value, low, high in (("value", "low", "high"), ("difference", "difference_low", "difference_high")):
        if value in table:
            table[value] = -table[value]
            table[low], table[high] = -table[high], -table[low]
    return table


def paired_comparison(reference: Results, rivals: Results, score: Score = "solved") -> pd.DataFrame:
    """Each rival against a reference decoder at the same mean passes, sequence by sequence.

    The reference's outcome at a rival's passes is interpolated, for every sequence, between its two settings with the
    nearest mean passes on both sides. A rival with more passes than any of them meets the one with the most, whose
    passes are then ``reference_passes``; one with fewer passes than any is left out. ``difference`` is the rival's mean
    score less the reference's, with a 95 % paired bootstrap interval over the sequences.
    """
    rows = []
    for settings, outcome in rivals:
        mine = scores_of(outcome, score)
        n, passes = len(mine), outcome["passes"].double().mean().item()
        curve = _curve(reference, score, n)
        if not curve or passes < curve[0][0]:
            continue
        met = min(passes, curve[-1][0])
        above = next(i for i, (p, _) in enumerate(curve) if p >= met)
        (low, first), (high, second) = curve[max(0, above - 1)], curve[above]
        weight = (met - low) / (high - low) if above else 1.0
        difference = paired_difference(mine, (1 - weight) * first + weight * second)
        row = {"decoder": label_of(settings), "passes": passes, "n": n, score_name(score): mine.mean()}
        row |= {"reference": mine.mean() - difference.value, "reference_passes": met}
        row |= {"difference": difference.value, "low": difference.low, "high": difference.high}
        rows.append(row)
    return pd.DataFrame(rows)


def _curve(reference: Results, score: Score, n: int) -> list[tuple[float, NDArray[np.float64]]]:
    """Mean passes and scores [n] of the settings that decoded the first n sequences, by rising passes, each once."""
    outcomes = [outcome for _, outcome in reference if len(outcome["passes"]) >= n]
    curve = [(o["passes"][:n].double().mean().item(), scores_of(o, score)[:n]) for o in outcomes]
    curve.sort(key=lambda point: point[0])
    return [point for i, point in enumerate(curve) if not i or point[0] > curve[i - 1][0]]


def score_name(score: Score) -> str:
    return score if isinstance(score, str) else "value"


def chosen_rows(compared: pd.DataFrame) -> list[dict[str, Any]]:
    """A table of :func:`against` as the statistics file keeps it: intervals as objects, nothing for what is missing.

    A choice without a cap has no ``cap``.
    """
    rows = []
    for row in compared.to_dict("records"):
        own = {key: row[key] for key in ("contender", "label", "n", "passes")}
        own |= {"cap": row["cap"]} if math.isfinite(row["cap"]) else {}
        own["score"] = {key: row[key] for key in ("value", "low", "high")}
        if math.isfinite(row.get("difference", math.nan)):
            own |= {key: row[key] for key in ("reference", "reference_passes")}
            keys = {"value": "difference", "low": "difference_low", "high": "difference_high"}
            own["difference"] = {name: row[key] for name, key in keys.items()}
            own |= {"p_value": row["p_value"]} if math.isfinite(row.get("p_value", math.nan)) else {}
        rows.append(own)
    return rows


def decoding_rows(results: Results, tables: Mapping[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Results as decoding rows of the statistics file, their metrics from tables of :func:`sweep_table`, by name."""
    rows = []
    for i, (settings, outcome) in enumerate(results):
        metrics = {name: table.iloc[i][["value", "low", "high"]].to_dict() for name, table in tables.items()}
        rows.append(decoding_row(outcome, settings, metrics))
    return rows


def clear_leads(compared: pd.DataFrame) -> pd.DataFrame:
    """The rows of :func:`against` or :func:`paired_comparison` whose interval is above zero, by falling difference."""
    low = compared["difference_low" if "difference_low" in compared else "low"]
    return compared[low > 0].sort_values("difference", ascending=False)
