"""What a study says of probed matrices and of heads: scores on held-out contexts, baselines, what noise costs."""

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
from maskmi.baselines import at_pairs, attention_features, mean_by_relation, regression, relation_classes
from maskmi.contexts import row_subset
from maskmi.head import PairHead, predict
from maskmi.metrics import calibration, regression_scores
from maskmi.model import mask_token
from maskmi.study import Backbone, fitted_head, labels_of, probed
from maskmi.train_head import HeadRecipe, hidden_states

Labelled = tuple[Tensor, Tensor, Tensor]  # tokens [N, L], labels and known pairs [N, L, L]


def head_scores(
    backbone: Backbone, head: PairHead, tokens: Tensor, labels: Tensor, known: Tensor
) -> tuple[dict[str, Any], Tensor]:
    """R², Pearson, Spearman, mean absolute error (nats) and calibration by decile on held-out contexts; predictions."""
    predicted = predict(head, hidden_states(backbone.model, tokens), tokens == mask_token(backbone.model))
    ours, true = at_pairs(predicted, known), at_pairs(labels, known)
    return {**regression_scores(ours, true), "calibration": calibration(ours, true)}, predicted


def baseline_scores(
    backbone: Backbone, train: Labelled, held_out: Labelled, jacobian: Tensor | None = None
) -> dict[str, dict[str, float]]:
    """Scores of the baselines on held-out contexts, each fitted on the training ones.

    Args:
        jacobian: the categorical Jacobian of the first held-out contexts [M, L, L], scored on these; a least-squares
            line of the labels on it is fitted there too, which favours it.
    """
    tokens, labels, known = train
    new_tokens, new_labels, new_known = held_out
    fit, true = at_pairs(labels, known), at_pairs(new_labels, new_known)
    length = max(known.shape[-1], new_known.shape[-1])
    classes = relation_classes(backbone.relations(length) if callable(backbone.relations) else backbone.relations)
    maps, new_maps = (attention_features(backbone.model, t, k) for t, k in ((tokens, known), (new_tokens, new_known)))
    last_layer, new_last_layer = (m[:, -1].mean(-1, keepdims=True) for m in (maps, new_maps))
    predictions = {
        "zero": np.zeros_like(true),
        "mean_by_relation": mean_by_relation((fit, known), new_known, classes),
        "attention_regression": regression(_flat(maps), fit, _flat(new_maps)),
        "last_layer_attention": regression(last_layer, fit, new_last_layer),
    }
    scores = {name: regression_scores(predicted, true) for name, predicted in predictions.items()}
    if jacobian is not None:
        some = new_known[: len(jacobian)]
        true, feature = at_pairs(new_labels[: len(jacobian)], some), at_pairs(jacobian, some)[:, None]
        scores["categorical_jacobian"] = regression_scores(regression(feature, true, feature), true)
    return scores


def _flat(features: np.ndarray) -> np.ndarray:
    return features.reshape(len(features), -1)


def learning_curve(
    backbone: Backbone,
    store: Artefacts,
    sizes: Sequence[int],
    train: Labelled,
    held_out: Labelled,
    passes: Tensor,
    recipe: HeadRecipe,
) -> pd.DataFrame:
    """Held-out scores of heads trained on the first contexts only: columns contexts, passes, r2, pearson, spearman.

    All heads get about the same number of steps (up to eight times the epochs), so that what differs is the data.

    Args:
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


def probing_variants(
    backbone: Backbone,
    store: Artefacts,
    tokens: Tensor,
    variants: Mapping[str, tuple[float, int | None]],
    budget: int,
    held_out: Labelled,
    label: str,
    recipe: HeadRecipe,
    seed: int = 0,
) -> pd.DataFrame:
    """What a head learns from the same number of passes, spent on few contexts or on parts of many.

    Args:
        tokens: contexts [N, L], of which each variant probes the first ones until ``budget`` passes are spent.
        variants: by name ``(tolerance, rows)``: how far improbable values are skipped (nats), and how many masked
            positions of a context are probed (None: all).
        label: the estimator that is learned and that ``held_out`` holds.

    Returns:
        A row a variant: ``variant``, ``contexts``, ``passes``, ``r2``, ``pearson``, ``spearman``, ``mae_nats``. All
        heads get about the same number of steps.
    """
    table, mask = [], mask_token(backbone.model)
    for name, (tolerance, count) in variants.items():
        chosen = None if count is None else row_subset(tokens, mask, count, seed)
        labels, known, passes = [], [], 0
        while passes < budget and len(labels) < len(tokens):  # one by one: a whole exact table alone is a thousand
            part = slice(len(labels), len(labels) + 1)
            rows = None if chosen is None else chosen[part]
            probes = probed(backbone, store, tokens[part], tolerance=tolerance, rows=rows, progress=False)
            passes += int(probes.passes.sum())
            for column, found in zip((labels, known), labels_of(probes, label), strict=True):
                column.append(found)
        size = len(labels)
        own = replace(recipe, epochs=round(recipe.epochs * min(8.0, len(tokens) / size)))
        head, _ = fitted_head(backbone, store, tokens[:size], torch.cat(labels), torch.cat(known), own, progress=False)
        scores, _ = head_scores(backbone, head, *held_out)
        del scores["calibration"]
        table.append({"variant": name, "contexts": size, "passes": passes, **scores})
    return pd.DataFrame(table)


def label_noise(directed: Tensor, known: Tensor) -> dict[str, float]:
    """What no predictor of a symmetric matrix can explain of the directed values: the model's own inconsistency.

    ``symmetric_r2``: R² of the symmetrised labels as a prediction of the directed ones; ``noise_share``: variance of
    half the difference of the two directions over the variance of the labels, a bound on what such noise costs;
    ``direction_pearson`` and ``direction_spearman``: correlation of one direction of a pair with the other.
    """
    both = known & known.mT
    forward, backward = at_pairs(directed, both), at_pairs(directed.mT, both)
    mean = (forward + backward) / 2
    directed_values = np.concatenate([forward, backward])
    directions = regression_scores(directed_values, np.concatenate([backward, forward]))
    return {
        "symmetric_r2": regression_scores(np.concatenate([mean, mean]), directed_values)["r2"],
        "noise_share": float(np.square((forward - backward) / 2).mean() / mean.var()),
    } | {f"direction_{name}": directions[name] for name in ("pearson", "spearman") if name in directions}


def finite_errors(outcome: Mapping[str, Tensor]) -> np.ndarray:
    """Joint errors of the parallel steps, in nats; infinite ones (combinations that the model excludes) left out."""
    errors = outcome["joint_error"].numpy()
    return errors[np.isfinite(errors)]


def probing_section(
    report: Mapping[str, float], contexts: int, backbone_sha256: str, benchmark: Path
) -> dict[str, Any]:
    """The probing section of the statistics file; speeds come from the benchmark, if it ran on this backbone."""
    section = {
        "contexts": contexts,
        "asymmetry_nats": report["mean_asymmetry"],
        "negative_share": report["negative_share"],
        "negative_size_nats": report["mean_negative_size"],
        "inconsistency_kl_nats": report["mean_kl"],
        "mean_mi_nats": report["mean_mi"],
        "estimator_correlation": report["correlation"],
    }
    measured = json.loads(benchmark.read_text()) if benchmark.exists() else {}
    if measured.get("backbone_sha256") == backbone_sha256:
        rows = measured["probing"]["rows"]
        section |= {
            "speedup_over_loop": rows["bfloat16"]["speedup_over_loop"]["median"],
            "speedup_over_loop_pruned": rows["bfloat16_pruned"]["speedup_over_loop"]["median"],
            "matrix_product_share": measured["matrix_products"]["share"],
            "bfloat16_correlation": measured["probing"]["agreement"]["bfloat16_correlation"],
            "bfloat16_mean_absolute_nats": measured["probing"]["agreement"]["bfloat16_mean_absolute_nats"],
        }
    return {key: value for key, value in section.items() if value is not None}
