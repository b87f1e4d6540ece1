"""What the Sudoku study says of decoders: tables for figures and statistics, and comparisons at equal passes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskmi.arena import paired_comparison
from maskmi.head import PairHead
from maskmi.metrics import bootstrap_interval, mcnemar, paired_difference
from maskmi.page import Example, record
from maskmi.reports import finite_errors
from maskmi.settings import curve_of, family_of, is_main, label_of
from maskmi.study import Backbone, Results
from maskmi.sudoku.diagnosis import CLASHES
from maskmi.sudoku.evaluation import solved_by_grade
from maskmi.sudoku.failures import KINDS
from maskmi.sudoku.grading import GRADES
from maskmi.sudoku.study import puzzle_set, summary
from maskmi.sudoku.sweep import page_sweep, paper_row


def decoding_frame(results: Results) -> pd.DataFrame:
    """The outcomes of a sweep as a table for figures: one row a setting, rates in per cent.

    Columns ``family``, ``label`` (the curve), ``panel`` (the test set), ``main``, the settings (NaN where a decoder has
    no such one), ``n``, ``passes``, ``value``, ``low``, ``high``, and ``error`` with its interval (nats).
    """
    rows = []
    for settings, outcome in results:
        row = summary(outcome, settings)
        solved = {key: 100 * value for key, value in row["metrics"]["solved"].items()}
        errors = finite_errors(outcome)
        error = bootstrap_interval(errors) if len(errors) else (np.nan, np.nan, np.nan)
        rows.append(
            {
                **dict.fromkeys(("budget", "lam", "alpha", "reading", "order", "matrix"), np.nan),
                **settings,
                "family": family_of(settings),
                "label": curve_of(settings),
                "panel": settings["test_set"],
                "main": is_main(settings),
                "n": row["n"],
                "passes": row["passes"],
                **solved,
                **dict(zip(("error", "error_low", "error_high"), error, strict=True)),
            }
        )
    return pd.DataFrame(rows)


def error_by_blanks(results: Results, width: int = 9) -> pd.DataFrame:
    """Mean joint error (nats) of the parallel steps by the number of blanks before them, in bins of ``width`` blanks.

    One row a setting and bin: ``family``, ``label``, ``blanks`` (the bin's centre), ``members`` (mean number of cells
    in a step), ``value`` with its 95 % bootstrap interval, ``steps`` (their number).
    """
    rows = []
    for settings, outcome in results:
        steps = pd.DataFrame({key: outcome[f"joint_{key}"].numpy() for key in ("left", "error", "members")})
        steps = steps[np.isfinite(steps.error)]
        for index, part in steps.groupby(steps.left // width):
            value, low, high = bootstrap_interval(part.error.to_numpy())
            rows.append(
                {
                    "family": family_of(settings),
                    "label": label_of(settings),
                    "blanks": (index + 0.5) * width,
                    "members": part.members.mean(),
                    "steps": len(part),
                    **{"value": value, "low": low, "high": high},
                }
            )
    return pd.DataFrame(rows)


def by_grade(results: Results, n_puzzles: int) -> pd.DataFrame:
    """Share solved (per cent, Wilson interval) by the logic a puzzle of the *unique* set needs, for each setting."""
    grades = puzzle_set("unique", n_puzzles).grades
    tables = []
    for settings, outcome in results:
        table = solved_by_grade(outcome["solved"], grades[: len(outcome["solved"])])
        tables.append(table.assign(family=family_of(settings), label=label_of(settings)))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def against_entropy_bounded(results: Results) -> pd.DataFrame:
    """:func:`paired_comparison` of all MI-guided settings of a sweep with its entropy-bounded ones, set by set."""
    tables = []
    for test_set in dict.fromkeys(settings["test_set"] for settings, _ in results):
        here = [result for result in results if result[0]["test_set"] == test_set]
        reference = [r for r in here if r[0]["decoder"] == "entropy_bounded" and r[0]["proxy"] == "entropy"]
        most = max(len(outcome["solved"]) for _, outcome in here)
        rivals = [r for r in here if r[0]["decoder"] == "mi_guided" and len(r[1]["solved"]) == most]
        table = paired_comparison(reference, rivals)
        table.insert(0, "set", test_set)
        table.insert(1, "temperature", here[0][0].get("temperature", 0.0))
        tables.append(table)
    table = pd.concat(tables, ignore_index=True)
    if len(table):
        equal = table.passes == table.reference_passes
        table["against"] = equal.map(
            {True: "entropy bounding at equal passes", False: "entropy bounding at its most passes"}
        )
    return table


def oracle_against_head(results: Results) -> pd.DataFrame:
    """Decoding by the probed matrix against the head at the same settings, on the puzzles that both decoded.

    The columns are those of :func:`against_entropy_bounded`.
    """
    heads = {label_of(s): (s, o) for s, o in results if s.get("matrix") == "head" and s["test_set"] == "unique"}
    rows = []
    for settings, outcome in results:
        same = label_of(settings | {"matrix": "head"})
        if settings.get("matrix") != "probed" or same not in heads:
            continue
        n = len(outcome["solved"])
        head = {key: heads[same][1][key][:n].double().numpy() for key in ("solved", "passes")}
        solved = outcome["solved"].double().numpy()
        difference = paired_difference(solved, head["solved"])
        row = {"set": settings["test_set"], "temperature": settings.get("temperature", 0.0)}
        row |= {"decoder": label_of(settings), "passes": outcome["passes"].double().mean().item(), "n": n}
        row |= {"solved": solved.mean(), "reference": head["solved"].mean(), **difference._asdict()}
        row["difference"] = row.pop("value")
        row["p_value"] = mcnemar(solved.astype(bool), head["solved"].astype(bool))
        rows.append(row | {"against": same, "reference_passes": head["passes"].mean()})
    return pd.DataFrame(rows)


def statistics_row(settings: Mapping[str, Any], outcome: Mapping[str, Tensor]) -> dict[str, Any]:
    """A decoding row of the statistics file; those with a figure of the paper beside them carry ``headline``."""
    row = summary(outcome, settings)
    paper = paper_row(settings)
    if paper and row["n"] <= 1000:
        row["headline"] = True
        if settings["test_set"] == "unique":
            row["paper"] = paper
    return row


def diagnosis_table(found: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Diagnoses as a table, one row each, shares in per cent; NaN where a decoder has no such value.

    ``found`` is of :func:`maskmi.sudoku.diagnosis.diagnose`, each with its ``label``, perhaps ``joint_error_nats``.
    """
    rows = []
    for one in found:
        percent = {key: 100 * one[key] for key in ("follows_singles", "flip_flop", "failed") if key in one}
        clashes = {f"clash: {name}": 100 * share for name, share in one.get("clashes", {}).items()}
        kinds = {name: 100 * share for name, share in one.get("kinds", {}).items()}
        own = {key: one.get(key, np.nan) for key in ("committed", "joint_error_nats", "remasked", "dead", "broken")}
        rows.append({"decoder": one["label"], "n": one["n"], **own, **percent, **kinds, **clashes})
    names = ["committed", "joint_error_nats", "follows_singles", "remasked", "flip_flop", "failed", *KINDS]
    names += [*(f"clash: {name}" for name in CLASHES), "dead", "broken"]
    return pd.DataFrame(rows).reindex(columns=["decoder", "n", *names])


def from_easy_to_hard(grades: NDArray[np.int64], count: int) -> list[int]:
    """The first puzzles of each grade, ``count`` in all, easy ones first; grades share evenly, the harder get the rest.

    Args:
        grades: [n], indices into :data:`maskmi.sudoku.grading.GRADES`.
    """
    found = [np.flatnonzero(grades == grade) for grade in np.unique(grades)]
    shares = [len(part) for part in np.array_split(np.arange(count), len(found))][::-1]
    return [int(row) for rows, share in zip(found, shares, strict=True) for row in rows[:share]]


def watched(backbone: Backbone, heads: Mapping[str, PairHead], count: int, seed: int = 0) -> list[Example]:
    """Puzzles of the *unique* set, from easy to hard, as each decoder of :func:`.sweep.page_sweep` fills them in."""
    puzzles = puzzle_set("unique", 1000)
    rows = from_easy_to_hard(puzzles.grades, count)
    return record(
        backbone.model,
        heads["entropy_drop"],
        torch.from_numpy(puzzles.puzzles[rows]).long(),
        torch.from_numpy(puzzles.solutions[rows]).long(),
        {label_of(settings): decoder for settings, decoder in page_sweep(heads)},
        names=[f"{GRADES[puzzles.grades[row]]}, {puzzles.blanks[row]} blanks (puzzle {row + 1})" for row in rows],
        verdict=lambda grid, solution: "solved" if torch.equal(grid, solution) else "not solved",
        seed=seed,
    )
