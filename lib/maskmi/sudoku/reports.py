"""What the Sudoku study says of MI matrices and heads: structure found, scores on held-out contexts, baselines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from maskmi.artefacts import Artefacts
from maskmi.baselines import at_pairs, attention_maps, mean_by_relation, regression, relation_classes
from maskmi.head import PairHead, predict
from maskmi.metrics import (
    auroc,
    bootstrap_interval,
    calibration,
    mcnemar,
    paired_difference,
    regression_scores,
    wilson_interval,
)
from maskmi.sudoku.grading import GRADES
from maskmi.sudoku.grid import relations
from maskmi.sudoku.mdm import MASK
from maskmi.sudoku.study import Backbone, fitted_head, puzzle_set, summary
from maskmi.sudoku.sweep import curve_of, family_of, label_of, paper_row
from maskmi.train_head import HeadRecipe, hidden_states

Results = Sequence[tuple[dict[str, Any], dict[str, Tensor]]]  # settings and outcome, of study.run_sweep
UNITS = ("row", "column", "box")


def by_relation(matrices: Tensor, known: Tensor) -> dict[str, np.ndarray]:
    """Values of the known pairs of [N, 81, 81] by the one unit that they share, several, or none."""
    flags = torch.as_tensor(relations())
    shared = flags.sum(-1)
    kinds = {name: flags[..., i] & (shared == 1) for i, name in enumerate(UNITS)}
    kinds |= {"several units": shared > 1, "no unit": shared == 0}
    return {name: at_pairs(matrices, known & kind) for name, kind in kinds.items()}


def structure_scores(matrices: Tensor, known: Tensor) -> dict[str, Any]:
    """How well a matrix tells constrained pairs from others.

    ``auroc``: for each unit, pairs that share it against pairs that share none, and ``any`` unit against none.
    ``mass_share``: share of the matrix's positive part that lies on pairs of one unit, and ``pair_share``, their share
    of all pairs.
    """
    flags = torch.as_tensor(relations())
    none = ~flags.any(-1)
    apart = at_pairs(matrices, known & none)
    scores: dict[str, Any] = {"auroc": {}}
    for name, kind in {**{u: flags[..., i] for i, u in enumerate(UNITS)}, "any": flags.any(-1)}.items():
        together = at_pairs(matrices, known & kind)
        labels = np.repeat([True, False], [len(together), len(apart)])
        scores["auroc"][name] = auroc(np.concatenate([together, apart]), labels)
    mass = np.clip(at_pairs(matrices, known & flags.any(-1)), 0, None).sum(), np.clip(apart, 0, None).sum()
    scores["mass_share"] = float(mass[0] / (mass[0] + mass[1]))
    scores["pair_share"] = len(at_pairs(matrices, known & flags.any(-1))) / len(at_pairs(matrices, known))
    return scores


def head_scores(
    backbone: Backbone, head: PairHead, tokens: Tensor, labels: Tensor, known: Tensor
) -> tuple[dict[str, Any], Tensor]:
    """R², Pearson, Spearman, mean absolute error (nats) and calibration by decile on held-out contexts; predictions."""
    predicted = predict(head, hidden_states(backbone.model, tokens), tokens == MASK)
    ours, true = at_pairs(predicted, known), at_pairs(labels, known)
    return {**regression_scores(ours, true), "calibration": calibration(ours, true)}, predicted


def baseline_scores(
    backbone: Backbone,
    train: tuple[Tensor, Tensor, Tensor],
    held_out: tuple[Tensor, Tensor, Tensor],
    jacobian: Tensor | None = None,
) -> dict[str, dict[str, float]]:
    """Scores of the baselines on held-out contexts, each fitted on the training ones.

    Args:
        train, held_out: tokens [N, 81], labels and known pairs [N, 81, 81].
        jacobian: the categorical Jacobian of the first held-out contexts [M, 81, 81], scored on these; a least-squares
            line of the labels on it is fitted there too, which favours it.
    """
    tokens, labels, known = train
    new_tokens, new_labels, new_known = held_out
    fit, true = at_pairs(labels, known), at_pairs(new_labels, new_known)
    classes = relation_classes(torch.as_tensor(relations()))
    maps, new_maps = (
        at_pairs(attention_maps(backbone.model, t), k) for t, k in ((tokens, known), (new_tokens, new_known))
    )
    last = slice(-backbone.model.model.layers[0].heads, None)
    last_layer, new_last_layer = maps[:, last].mean(1, keepdims=True), new_maps[:, last].mean(1, keepdims=True)
    predictions = {
        "zero": np.zeros_like(true),
        "mean_by_relation": mean_by_relation((fit, known), new_known, classes),
        "attention_regression": regression(maps, fit, new_maps),
        "last_layer_attention": regression(last_layer, fit, new_last_layer),
    }
    scores = {name: regression_scores(predicted, true) for name, predicted in predictions.items()}
    if jacobian is not None:
        some = new_known[: len(jacobian)]
        true, feature = at_pairs(new_labels[: len(jacobian)], some), at_pairs(jacobian, some)[:, None]
        scores["categorical_jacobian"] = regression_scores(regression(feature, true, feature), true)
    return scores


def learning_curve(
    backbone: Backbone,
    store: Artefacts,
    sizes: Sequence[int],
    train: tuple[Tensor, Tensor, Tensor],
    held_out: tuple[Tensor, Tensor, Tensor],
    passes: Tensor,
    recipe: HeadRecipe,
) -> pd.DataFrame:
    """Held-out scores of heads trained on the first contexts only: columns contexts, passes, r2, pearson, spearman.

    All heads get about the same number of steps (up to eight times the epochs), so that what differs is the data.

    Args:
        train, held_out: tokens [N, 81], labels and known pairs [N, 81, 81].
        passes: [N] that probing each training context took.
    """
    tokens, labels, known = train
    rows = []
    for size in sizes:
        epochs = round(recipe.epochs * min(8.0, len(tokens) / size))
        part = replace(recipe, epochs=epochs)
        head, _ = fitted_head(backbone, store, tokens[:size], labels[:size], known[:size], part)
        scores, _ = head_scores(backbone, head, *held_out)
        del scores["calibration"]
        rows.append({"contexts": size, "passes": int(passes[:size].sum()), **scores})
    return pd.DataFrame(rows)


def paired_comparison(reference: Results, rivals: Results) -> pd.DataFrame:
    """Each rival against a reference decoder at the same mean passes, puzzle by puzzle.

    The reference's outcome at a rival's passes is interpolated, for every puzzle, between its two settings with the
    nearest mean passes on both sides; rivals outside the reference's range are left out. ``difference`` is the share
    solved by the rival less the reference's, with a 95 % paired bootstrap interval over the puzzles; ``p_value`` is
    McNemar's for the rival against the reference's setting with the nearest passes.
    """
    curve = sorted((o["passes"].double().mean().item(), o["solved"].double().numpy()) for _, o in reference)
    curve = [point for i, point in enumerate(curve) if not i or point[0] > curve[i - 1][0]]
    rows = []
    for settings, outcome in rivals:
        passes, solved = outcome["passes"].double().mean().item(), outcome["solved"].double().numpy()
        above = next((i for i, (p, _) in enumerate(curve) if p >= passes), len(curve))
        if above in (0, len(curve)):
            continue
        (low, first), (high, second) = curve[above - 1], curve[above]
        weight = (passes - low) / (high - low)
        difference = paired_difference(solved, (1 - weight) * first + weight * second)
        nearest = second if weight > 0.5 else first
        row = {"decoder": label_of(settings), "passes": passes, "n": len(solved), "solved": solved.mean()}
        row |= {"reference": solved.mean() - difference.value}
        row |= {"difference": difference.value, "low": difference.low, "high": difference.high}
        rows.append(row | {"p_value": mcnemar(solved.astype(bool), nearest.astype(bool))})
    return pd.DataFrame(rows)


def label_noise(directed: Tensor, known: Tensor) -> dict[str, float]:
    """What no predictor of a symmetric matrix can explain of the directed values: the model's own inconsistency.

    ``symmetric_r2``: R² of the symmetrised labels as a prediction of the directed ones; ``noise_share``: variance of
    half the difference of the two directions over the variance of the labels, a bound on what such noise costs.
    """
    both = known & known.mT
    forward, backward = at_pairs(directed, both), at_pairs(directed.mT, both)
    mean = (forward + backward) / 2
    directed_values = np.concatenate([forward, backward])
    return {
        "symmetric_r2": regression_scores(np.concatenate([mean, mean]), directed_values)["r2"],
        "noise_share": float(np.square((forward - backward) / 2).mean() / mean.var()),
    }


def is_main(settings: Mapping[str, Any]) -> bool:
    """Whether a setting belongs to the main figures: each decoder in its standard form, without the ablations."""
    if settings["decoder"] == "entropy_bounded":
        return settings["proxy"] == "entropy"
    if settings["decoder"] != "mi_guided":
        return True
    standard = (settings["lam"], settings["alpha"], settings["reading"], settings["order"])
    return standard == (1.0, 1.0, "cumulative", "entropy") and settings["matrix"] in (
        "head",
        "probed",
        "head: tv",
        "attention",
        "probed: jacobian",
    )


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


def finite_errors(outcome: Mapping[str, Tensor]) -> np.ndarray:
    """Joint errors of the parallel steps, in nats; infinite ones (combinations that the model excludes) left out."""
    errors = outcome["joint_error"].numpy()
    return errors[np.isfinite(errors)]


def by_grade(results: Results, n_puzzles: int) -> pd.DataFrame:
    """Share solved (per cent, Wilson interval) by the logic a puzzle of the *unique* set needs, for each setting."""
    grades = puzzle_set("unique", n_puzzles).grades
    rows = []
    for settings, outcome in results:
        solved = outcome["solved"].numpy()
        for grade, name in enumerate(GRADES):
            here = solved[grades[: len(solved)] == grade]
            if len(here):
                interval = {k: 100 * v for k, v in wilson_interval(int(here.sum()), len(here))._asdict().items()}
                row = {"family": family_of(settings), "label": label_of(settings), "grade": name, "n": len(here)}
                rows.append(row | interval)
    return pd.DataFrame(rows)


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
    return pd.concat(tables, ignore_index=True)


def statistics_row(settings: Mapping[str, Any], outcome: Mapping[str, Tensor]) -> dict[str, Any]:
    """A decoding row of the statistics file; those with a figure of the paper beside them carry ``headline``."""
    row = summary(outcome, settings)
    paper = paper_row(settings)
    if paper and row["n"] <= 1000:
        row["headline"] = True
        if settings["test_set"] == "unique":
            row["paper"] = paper
    return row


def probing_section(report: Mapping[str, float], contexts: int, benchmark: Path) -> dict[str, Any]:
    """The probing section of the statistics file, with the speedup from the benchmark's results if it was run."""
    section = {
        "contexts": contexts,
        "asymmetry_nats": report["mean_asymmetry"],
        "negative_share": report["negative_share"],
        "negative_size_nats": report["mean_negative_size"],
        "inconsistency_kl_nats": report["mean_kl"],
        "mean_mi_nats": report["mean_mi"],
        "estimator_correlation": report["correlation"],
    }
    if benchmark.exists():
        section |= json.loads(benchmark.read_text())["statistics"]
    return {key: value for key, value in section.items() if value is not None}
