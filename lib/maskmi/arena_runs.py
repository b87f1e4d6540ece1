"""Running the settings of an arena: the dear ones on fewer sequences, ensembles by two models, how a decoder works."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from maskmi.artefacts import Artefacts
from maskmi.decoding import EntropyBounded, Naive, decode
from maskmi.decoding.loop import Trace
from maskmi.settings import Setting, contender_of, label_of
from maskmi.study import Backbone, Results, head_of, modules_of

PARTS = ("most", "dear", "tie")


def is_dear(settings: Mapping[str, Any]) -> bool:
    """Whether a setting takes hundreds of passes a sequence: those that check every filled position."""
    return settings.get("check") == "leave_one_out" or (
        settings["decoder"] == "corrected" and "dependence" not in settings
    )


def ties(rounds: Sequence[int], ks: Sequence[int], budgets: Sequence[float]) -> list[Setting]:
    """Ensembles of two models (TIE) for rounds of so many steps, each around naive ``k`` and EB ``budget`` decoding."""
    sweep = []
    for steps in rounds:
        own = {"steps": steps, "score": "confidence"}
        sweep += [({"decoder": "tie", "inner": "naive", "k": k} | own, Naive(k)) for k in ks]
        for budget in budgets:
            inner = {"inner": "entropy_bounded", "budget": budget}
            sweep.append(({"decoder": "tie"} | inner | own, EntropyBounded(budget)))
    return sweep


def run_by_parts(sweep: Sequence[Setting], run: Callable[[str, list[Setting]], Results]) -> Results:
    """Results of a sweep in its order, each of its ``PARTS`` by a call of ``run(part, settings)``; empty ones by none.

    ``dear`` are settings that :func:`is_dear`, ``tie`` ensembles, ``most`` all others.
    """
    parts: dict[str, list[Setting]] = {part: [] for part in PARTS}
    place = []
    for setting in sweep:
        part = "tie" if setting[0]["decoder"] == "tie" else "dear" if is_dear(setting[0]) else "most"
        place.append((part, len(parts[part])))
        parts[part].append(setting)
    found = {part: run(part, settings) for part, settings in parts.items() if settings}
    return [found[part][index] for part, index in place]


def require_second(sweep: Sequence[Setting], second: Backbone | None) -> None:
    """Refuse a sweep that holds ensembles where there is no second model.

    Raises:
        ValueError: where it does.
    """
    if second is None and any(settings["decoder"] == "tie" for settings, _ in sweep):
        raise ValueError("ensembles need a second model")


def diagnosed(
    backbone: Backbone,
    store: Artefacts,
    setting: Setting,
    states: Tensor,
    diagnose: Callable[[Trace], dict[str, Any]],
    *,
    inputs: Mapping[str, Tensor],
    code: str,
    seed: int = 0,
    temperature: float = 0.0,
) -> dict[str, Any]:
    """What ``diagnose`` says of a setting's trace from ``states`` [N, L], and its names; stored.

    Args:
        inputs: what the key of the result covers beside the backbone and the decoder's head.
        code: the module of ``diagnose``.
    """
    settings, decoder = setting

    def make() -> dict[str, Any]:
        how = {"seed": seed, "temperature": temperature, "batch_size": 512}
        return diagnose(decode(backbone.model, states, decoder, keep_trace=True, **how).trace)

    found = store.get_or_make(
        "diagnosed",
        make,
        parameters={"settings": settings, "seed": seed} | ({"temperature": temperature} if temperature else {}),
        inputs=backbone.identity | dict(inputs) | {"head": head_of(decoder)},
        code=[code, *modules_of(decoder)],
    )
    return {"contender": contender_of(settings), "label": label_of(settings), **found}
