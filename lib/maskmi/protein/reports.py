"""What the protein studies say of decoders and of MI maps: rows of the statistics file, tables for figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from maskmi.artefacts import Artefacts
from maskmi.head import PairHead, predict
from maskmi.metrics import bootstrap_interval
from maskmi.page import Example, record
from maskmi.probing import MATRICES, average_product_correction
from maskmi.protein.adapter import MASK, encode, lengths
from maskmi.protein.contacts import (
    FRACTIONS,
    attention_scores,
    contact_precision,
    covering_contexts,
    distance_scores,
    mean_map,
    precision_intervals,
    probed_maps,
)
from maskmi.protein.structures import Structure
from maskmi.protein.study import half_of, natural
from maskmi.protein.sweep import LABEL, PAPER, page_sweep
from maskmi.reports import finite_errors
from maskmi.settings import curve_of, family_of, is_main, label_of
from maskmi.study import Backbone, Results, decoding_row
from maskmi.train_head import hidden_states

Row = dict[str, Any]


def infilling_metrics(outcome: Mapping[str, Tensor], seed: int = 0) -> dict[str, dict[str, float]]:
    """``recovery`` and ``log_pseudo_perplexity`` (nats a residue) of :func:`maskmi.protein.evaluation.recovered`."""
    return {
        name: bootstrap_interval(outcome[name].numpy(), seed=seed)._asdict()
        for name in ("recovery", "log_pseudo_perplexity")
    }


def statistics_row(
    settings: Mapping[str, Any], outcome: Mapping[str, Tensor], metrics: Mapping[str, Any], paper: bool = False
) -> Row:
    """A decoding row of the statistics file.

    Of what is generated from nothing, the settings of the paper's table, sequential, entropy bounded and dependence
    alone (α = 0) carry ``headline``, and with ``paper`` the paper's figures (their divergence is over a variable that
    it does not name).
    """
    row = decoding_row(outcome, settings, metrics)
    if settings["test_set"] == "unconditional":
        published = _published(settings)
        dependence_only = settings["decoder"] == "mi_guided" and settings["alpha"] == 0
        if published or dependence_only or settings["decoder"] in ("sequential", "entropy_bounded"):
            row["headline"] = True
        if published and paper:
            row["paper"] = published
    return row


def _published(settings: Mapping[str, Any]) -> dict[str, float] | None:
    """The paper's passes and divergence at these settings, if it has them."""
    if settings["decoder"] == "mi_guided" and not is_main(dict(settings) | {"matrix": "head"}):
        return None
    for decoder, own, passes, divergence in PAPER:
        if decoder == settings["decoder"] and all(settings.get(key) == value for key, value in own.items()):
            return {"passes": passes, "jsd": divergence}
    return None


def name_of(settings: Mapping[str, Any]) -> str:
    """A short name of one setting; the order of sequential decoding is part of it."""
    return f"sequential, {settings['order']}" if settings["decoder"] == "sequential" else label_of(settings)


def decoding_frame(
    rows: Sequence[Row], metric: str, test_set: str = "unconditional", variety: str = "distance"
) -> pd.DataFrame:
    """Statistics rows of a test set as a table for figures: family, label (the curve), setting, passes, and ``metric``
    as value, low, high; ``variety``, the value of that metric, where it was measured."""
    table = []
    for row in rows:
        if row["test_set"] != test_set or metric not in row["metrics"]:
            continue
        settings = {"decoder": row["decoder"], **row["settings"]}
        names = {"family": family_of(settings), "label": curve_of(settings), "setting": name_of(settings)}
        if row["decoder"] == "sequential":
            names["label"] = names["setting"]
        varied = row["metrics"].get(variety, {}).get("value", float("nan"))
        table.append(
            names
            | {"passes": row["passes"], "variety": varied}
            | {key: row["metrics"][metric][key] for key in ("value", "low", "high")}
        )
    return pd.DataFrame(table)


def error_frame(results: Results) -> pd.DataFrame:
    """Joint error of the parallel steps of each decoder with a budget: family, label (the curve), ``budget``, ``error``
    with low and high, all in nats."""
    rows = []
    for settings, outcome in results:
        errors = finite_errors(outcome)
        if "budget" in settings and len(errors):
            names = {"family": family_of(settings), "label": curve_of(settings), "budget": settings["budget"]}
            error = dict(zip(("error", "low", "high"), bootstrap_interval(errors), strict=True))
            rows.append(names | error)
    return pd.DataFrame(rows)


def structure_maps(
    backbone: Backbone, store: Artefacts, heads: Mapping[str, PairHead], structure: Structure, *, probe: bool = True
) -> dict[str, Tensor]:
    """Score matrices [L, L] of one chain, all but ``distance`` average-product corrected.

    ``head``s' MI and the last layer's attention, averaged over contexts that mask each pair together; with ``probe``
    also what probing these contexts gives, the categorical Jacobian among it (some 60 passes a residue, stored).
    """
    tokens = encode([structure.sequence])[0]
    contexts = covering_contexts(tokens, MASK)
    masked = contexts == MASK
    hidden = hidden_states(backbone.model, contexts)
    maps = {"distance": distance_scores(len(tokens)), "attention": attention_scores(backbone.model, contexts)}
    for label, head in heads.items():
        maps[f"head: {label}"] = average_product_correction(mean_map(predict(head, hidden, masked), masked)[0])
    if probe:
        found = store.get_or_make(
            "probed_maps",
            lambda: probed_maps(backbone.model, contexts)[0],
            parameters={},
            inputs=backbone.identity | {"contexts": contexts},
            code=["maskmi.probing", "maskmi.protein.contacts"],
        )
        for name in MATRICES:
            if name in found:
                corrected = found[name] if name == "jacobian" else average_product_correction(found[name])
                maps[f"probed: {name}"] = corrected
    return maps


def precision_table(maps: Mapping[str, Mapping[str, Tensor]], structures: Sequence[Structure]) -> pd.DataFrame:
    """Contact precision by method and cut, means over structures: method, cut, value, low, high, n.

    The last method, ``chance``, is the share of contacts among all pairs that count.

    Args:
        maps: for each structure's id its matrices by method, of :func:`structure_maps`.
    """
    rows = []
    for method in next(iter(maps.values())):
        found = [contact_precision(maps[s.id][method], torch.as_tensor(s.coordinates)) for s in structures]
        for cut, interval in precision_intervals(found).items():
            if cut in FRACTIONS:
                rows.append({"method": method, "cut": cut, **interval._asdict(), "n": len(structures)})
    chance = precision_intervals(found)["chance"]
    rows += [{"method": "chance", "cut": cut, **chance._asdict(), "n": len(structures)} for cut in FRACTIONS]
    return pd.DataFrame(rows)


def watched(backbone: Backbone, heads: Mapping[str, PairHead], count: int, seed: int = 0) -> list[Example]:
    """Natural sequences, half of their residues masked, as each decoder of :func:`.sweep.page_sweep` fills them in.

    Values are drawn at temperature 1, as in :func:`.study.infilled`.
    """
    truth = natural(backbone.name, "reference")[:count]
    masked = half_of(truth, seed)
    sizes = zip(masked.sum(1).tolist(), lengths(truth).tolist(), strict=True)
    return record(
        backbone.model,
        heads[LABEL],
        truth.masked_fill(masked, MASK),
        truth,
        {name_of(settings): decoder for settings, decoder in page_sweep(heads)},
        names=[
            f"natural sequence {k}, {blanks} of {length} residues masked" for k, (blanks, length) in enumerate(sizes, 1)
        ],
        verdict=lambda written, right: f"{(written == right).double().mean():.0%} of all residues as in nature",
        seed=seed,
        temperature=1.0,
    )
