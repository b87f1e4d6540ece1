"""Running the arena of the protein studies: sequences from nothing, gaps filled in, and how a decoder works."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from maskmi import arena_runs
from maskmi.arena_runs import require_second, run_by_parts
from maskmi.artefacts import Artefacts
from maskmi.ensembles import run_ensembles
from maskmi.protein.adapter import MASK
from maskmi.protein.diagnosis import diagnose
from maskmi.protein.evaluation import judged, recovered
from maskmi.protein.study import filled_in, generated, half_of, load_backbone, natural, starting_states
from maskmi.settings import Setting
from maskmi.study import Backbone, Results


def second_backbone(study: str, checkpoint: str, **how: Any) -> Backbone | None:
    """The other model of ensembles, from the path of a checkpoint; None for ``none``.

    Raises:
        ValueError: for ``antiberty``, of which there is one.
    """
    if checkpoint == "none":
        return None
    if study == "antiberty":
        raise ValueError("AntiBERTy has one checkpoint: an ensemble needs a second model of its alphabet")
    return load_backbone(study, checkpoint=checkpoint, **how)


def parts_of_natural(study: str, n_test: int, n_validation: int) -> tuple[Tensor, Tensor]:
    """Natural sequences [N, L] to be filled in: those that are reported, and others that settings are chosen on.

    Raises:
        ValueError: for more than there are.
    """
    found = natural(study, "reference")
    if n_test + n_validation > len(found):
        raise ValueError(
            f"there are {len(found)} natural sequences, not {n_test} and {n_validation} others: ask for fewer"
        )
    return found[:n_test], found[len(found) - n_validation :]


def generate(
    backbone: Backbone,
    store: Artefacts,
    sweep: Sequence[Setting],
    n_samples: int,
    n_dear: int,
    *,
    second: Backbone | None = None,
    seed: int = 0,
    name: str = "unconditional",
    **options: Any,
) -> Results:
    """``(settings, outcome)`` of each setting of a sweep, in its order, from nothing at temperature 1.

    An outcome holds ``tokens``, among others. Outcomes with one ``seed`` have lengths and noise in common, sample by
    sample.

    Args:
        n_dear: samples of the settings that :func:`maskmi.arena_runs.is_dear`, where fewer.
        second: the other model of the ensembles, which a sweep may hold only with it.
        name: of the set.
        options: of :func:`maskmi.study.decoded`.

    Raises:
        ValueError: for ensembles without a second model.
    """
    require_second(sweep, second)

    def part(kind: str, settings: list[Setting]) -> Results:
        count = min(n_dear, n_samples) if kind == "dear" else n_samples
        common = {"seed": seed, "name": name}
        if kind != "tie":
            return generated(backbone, store, settings, count, n_scored=0, **common, **options)
        return run_ensembles(
            (backbone, second),
            store,
            settings,
            starting_states(backbone.name, count, seed),
            judge=lambda tokens: judged(backbone.model, tokens, 0),
            temperature=1.0,
            **common,
        )

    return run_by_parts(sweep, part)


def infill(
    backbone: Backbone,
    store: Artefacts,
    sweep: Sequence[Setting],
    truth: Tensor,
    n_dear: int,
    *,
    second: Backbone | None = None,
    seed: int = 0,
    name: str = "infilling",
    **options: Any,
) -> Results:
    """The same on natural sequences ``truth`` [N, L], a random half of each masked; outcomes hold ``recovery``."""
    require_second(sweep, second)

    def part(kind: str, settings: list[Setting]) -> Results:
        rows = truth[:n_dear] if kind == "dear" else truth
        where = half_of(rows, seed)
        common = {"seed": seed, "name": name}
        if kind != "tie":
            return filled_in(backbone, store, settings, rows, where, n_scored=0, **common, **options)
        states = rows.masked_fill(where, MASK)
        return run_ensembles(
            (backbone, second),
            store,
            settings,
            states,
            judge=lambda tokens: recovered(backbone.model, tokens, states, rows, 0),
            inputs={"states": states, "truth": rows},
            temperature=1.0,
            **common,
        )

    return run_by_parts(sweep, part)


def diagnosed(backbone: Backbone, store: Artefacts, setting: Setting, count: int, *, seed: int = 0) -> dict[str, Any]:
    """What :func:`maskmi.protein.diagnosis.diagnose` says of a setting that generates ``count`` sequences."""
    states = starting_states(backbone.name, count, seed)
    return arena_runs.diagnosed(
        backbone,
        store,
        setting,
        states,
        lambda trace: diagnose(states == MASK, trace),
        inputs={"states": states},
        code="maskmi.protein.diagnosis",
        seed=seed,
        temperature=1.0,
    )


def diagnosis_table(found: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Diagnoses as a table, one row each, shares in per cent; NaN where a decoder has no such value.

    ``found`` is of :func:`diagnosed`, each perhaps with ``joint_error_nats``.
    """
    percent = ["flip_flop", "from_n_end"]
    columns = ["label", "n", "committed", "joint_error_nats", "remasked", *percent]
    table = pd.DataFrame(found).reindex(columns=columns).rename(columns={"label": "decoder"})
    return table.assign(**{name: 100 * table[name] for name in percent})
