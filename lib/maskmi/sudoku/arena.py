"""The arena of the Sudoku study: the sweeps of all decoders, and how they are run on a set of puzzles.

Ranges are those in which a decoder trades passes for solved puzzles here. Thresholds made for vocabularies of 100,000
are swept far from their defaults. Leave-one-out checks take a pass for every filled cell and step, hundreds a puzzle.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from maskmi.artefacts import Artefacts
from maskmi.decoding import (
    AGDO,
    DAPD,
    KLASS,
    P2,
    PUNT,
    WINO,
    ConfidenceFactor,
    ConfidenceThreshold,
    DepCap,
    Dilated,
    EntropyBounded,
    HeadMatrix,
    InfoGain,
    Margin,
    Naive,
    ReMDMCap,
    ReMDMLoop,
    Saber,
    Sequential,
    decode,
)
from maskmi.ensembles import run_ensembles
from maskmi.head import PairHead
from maskmi.settings import (
    Setting,
    contender_of,
    corrected_setting,
    each_once,
    entropy_bounded_setting,
    label_of,
    mi_setting,
    setting_of,
)
from maskmi.study import Backbone, Results, head_of, modules_of
from maskmi.sudoku.diagnosis import diagnose
from maskmi.sudoku.study import judged, puzzle_set, run_sweep

REFERENCE = "MI (head)"  # the contender that all are held against: MI-guided as published
OURS = "MI ("  # how the names of our own contenders begin


def short_arena(heads: Mapping[str, PairHead]) -> list[Setting]:
    """Every decoder at one to three settings, most of at most 15 passes."""
    return list(each_once(_short(heads)))


def whole_arena(heads: Mapping[str, PairHead]) -> list[Setting]:
    """Every decoder over its range, and the variants that take hundreds of passes, beside :func:`short_arena`."""
    return list(each_once([*_short(heads), *_simple(), *_rivals(), *_remasking(), *_guided(heads)]))


def tie_arena(name: str) -> list[Setting]:
    """Ensembles of two models, for the ``short`` or the ``whole`` sweep."""
    whole = name == "whole"
    rounds = (1, 2) if whole else (2,)
    sweep = []
    for steps in rounds:
        own = {"steps": steps, "score": "confidence"}
        for k in (7, 10, 14, 20) if whole else (14,):
            sweep.append(({"decoder": "tie", "inner": "naive", "k": k} | own, Naive(k)))
        for budget in (0.01, 0.1, 0.5, 1.0) if whole else (0.1,):
            inner = {"inner": "entropy_bounded", "budget": budget}
            sweep.append(({"decoder": "tie"} | inner | own, EntropyBounded(budget)))
    return sweep


def _short(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    head = HeadMatrix(heads["entropy_drop"])
    yield setting_of("sequential", Sequential, order="entropy")
    for k in (7, 14):
        yield setting_of("naive", Naive, k=k)
    yield setting_of("margin", Margin, k=7)
    for threshold in (0.8, 0.95):
        yield setting_of("confidence_threshold", ConfidenceThreshold, threshold=threshold)
    for factor in (0.1, 1.0):
        yield setting_of("confidence_factor", ConfidenceFactor, factor=factor)
    for budget in (0.01, 0.2, 0.5):
        yield entropy_bounded_setting(budget)
    for budget in (0.1, 0.3, 1.0):
        yield mi_setting(budget, head, "head")
    yield mi_setting(0.3, head, "head", alpha=0.3)
    yield mi_setting(0.6, head, "head", lam=4.0)
    if "tv" in heads:
        yield mi_setting(0.3, HeadMatrix(heads["tv"]), "head: tv")
    yield corrected_setting(mi_setting(1.0, head, "head"), 0.1, dependence=2.0)
    yield setting_of("klass", KLASS, threshold=0.97, kl=0.1, history=1)
    yield setting_of("punt", PUNT, epsilon=0.1)
    yield setting_of("info_gain", InfoGain, k=4, bypass=0.97)
    yield setting_of("depcap", DepCap, shortest=60, low=0.8, high=0.95, gamma=-6.0)
    yield setting_of("saber", Saber, n=4, check="in_place")
    yield setting_of("wino", WINO, threshold=0.97, threshold_back=0.5, check="in_place")
    yield setting_of("remdm_cap", ReMDMCap, steps=10, eta=0.04)
    yield setting_of("remdm_loop", ReMDMLoop, steps=10, eta=0.02)
    yield setting_of("p2", P2, steps=10, eta=0.0, check="in_place")
    yield setting_of("dapd", DAPD, threshold=0.01, confidence=0.95)
    yield setting_of("dilated", Dilated)
    yield setting_of("agdo", AGDO, k=7)


def _simple() -> Iterator[Setting]:
    """Decoders that rank positions, and nothing else."""
    for k in (2, 3, 4, 5, 10):
        yield setting_of("naive", Naive, k=k)
    for k in (4, 5, 14):
        yield setting_of("margin", Margin, k=k)
    for threshold in (0.6, 0.9, 0.98, 0.99):
        yield setting_of("confidence_threshold", ConfidenceThreshold, threshold=threshold)
    for factor in (0.03, 0.3, 0.6):
        yield setting_of("confidence_factor", ConfidenceFactor, factor=factor)
    for budget in (1e-5, 1e-4, 0.001, 0.03, 0.1, 0.3, 1.0, 2.0):
        yield entropy_bounded_setting(budget)
    for k in (4, 5, 10, 14):
        yield setting_of("agdo", AGDO, k=k)
    for block in (9, 18):
        yield setting_of("dilated", Dilated, block=block)


def _rivals() -> Iterator[Setting]:
    """Decoders that ask which positions bear on one another."""
    for threshold in (0.8, 0.97, 0.99):
        for kl in (0.1, 1.0):
            yield setting_of("klass", KLASS, threshold=threshold, kl=kl, history=1)
    yield setting_of("klass", KLASS, threshold=0.9, kl=0.1, history=2)
    for epsilon in (0.03, 0.3, 1.0, 3.0):
        yield setting_of("punt", PUNT, epsilon=epsilon)
    for bypass in (0.9, 0.97, 0.99):
        for k in (2, 8):
            yield setting_of("info_gain", InfoGain, k=k, bypass=bypass)
    for gamma in (-2.0, -6.0, -10.0):  # blocks of 60: the whole puzzle is one
        for low, high in ((0.8, 0.95), (0.9, 0.99), (0.95, 0.995)):
            yield setting_of("depcap", DepCap, shortest=60, low=low, high=high, gamma=gamma)
    yield setting_of("depcap", DepCap, shortest=60, low=0.98, high=0.999, gamma=-6.0)
    yield setting_of("depcap", DepCap, shortest=27, low=0.9, high=0.99, gamma=-6.0)
    for threshold in (0.003, 0.01, 0.02):
        for confidence in (0.95, 0.99):
            yield setting_of("dapd", DAPD, threshold=threshold, confidence=confidence)


def _remasking() -> Iterator[Setting]:
    """Decoders that mask again: as published, their check in place, and with the exact one."""
    for n in (2, 6, 8, 10, 14):
        yield setting_of("saber", Saber, n=n, check="in_place")
    for threshold in (0.9, 0.97, 0.99):
        for back in (0.5, 0.9):
            yield setting_of("wino", WINO, threshold=threshold, threshold_back=back, check="in_place")
    for steps in (5, 10, 15):
        for eta in (0.0, 0.04):
            yield setting_of("remdm_cap", ReMDMCap, steps=steps, eta=eta)
        yield setting_of("remdm_loop", ReMDMLoop, steps=steps, eta=0.02)
        for eta in (0.0, 0.5, 1.0):
            yield setting_of("p2", P2, steps=steps, eta=eta, check="in_place")
    for n in (4, 8):
        yield setting_of("saber", Saber, n=n, check="leave_one_out")
    for threshold in (0.6, 0.9):
        yield setting_of("wino", WINO, threshold=threshold, threshold_back=0.9, check="leave_one_out")
    for steps in (5, 10):
        yield setting_of("p2", P2, steps=steps, eta=1.0, check="leave_one_out")


def _guided(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    """MI-guided decoding as published, our variants of it, and what they become with a check."""
    head = HeadMatrix(heads["entropy_drop"])
    for budget in (0.01, 0.03, 0.6, 2.0):
        yield mi_setting(budget, head, "head")
    for budget in (0.1, 0.3, 1.0):
        yield mi_setting(budget, head, "head", reading="threshold")
    for budget in (0.03, 0.1, 0.6, 1.0):
        yield mi_setting(budget, head, "head", alpha=0.3)
    for budget in (0.1, 0.3, 1.0, 2.0):
        yield mi_setting(budget, head, "head", lam=4.0)
    if "tv" in heads:
        for budget in (0.1, 0.6, 1.0, 2.0):
            yield mi_setting(budget, HeadMatrix(heads["tv"]), "head: tv")
    for budget in (0.6, 1.0, 2.0):
        for dependence in (1.0, 2.0, 4.0):
            yield corrected_setting(mi_setting(budget, head, "head"), 0.1, dependence=dependence)
    for every in (1, 100):
        yield corrected_setting(mi_setting(0.6, head, "head"), 0.5, every=every)


def is_dear(settings: Mapping[str, Any]) -> bool:
    """Whether a setting takes hundreds of passes a puzzle: those that check every filled cell."""
    return settings.get("check") == "leave_one_out" or (
        settings["decoder"] == "corrected" and "dependence" not in settings
    )


def run(
    backbone: Backbone,
    store: Artefacts,
    sweep: Sequence[Setting],
    test_set: str,
    n_puzzles: int,
    n_dear: int,
    *,
    second: Backbone | None = None,
    **options: Any,
) -> Results:
    """``(settings, outcome)`` of each setting of a sweep, in its order, on the first puzzles of a set.

    Args:
        n_dear: puzzles of the settings that :func:`is_dear`, where fewer.
        second: the other model of the ensembles, which a sweep may hold only with it.
        options: of :func:`maskmi.study.decoded`.

    Raises:
        ValueError: for ensembles without a second model.
    """
    parts: dict[str, list[Setting]] = {"most": [], "dear": [], "tie": []}
    place = []
    for setting in sweep:
        part = "tie" if setting[0]["decoder"] == "tie" else "dear" if is_dear(setting[0]) else "most"
        place.append((part, len(parts[part])))
        parts[part].append(setting)
    if parts["tie"] and second is None:
        raise ValueError("ensembles need a second model")
    counts = {"most": n_puzzles, "dear": min(n_dear, n_puzzles)}
    found = {
        part: run_sweep(backbone, store, parts[part], test_set, n, **options)
        for part, n in counts.items()
        if parts[part]
    }
    if parts["tie"]:
        puzzles = puzzle_set(test_set, n_puzzles)
        states = torch.from_numpy(puzzles.puzzles)
        found["tie"] = run_ensembles(
            (backbone, second),
            store,
            parts["tie"],
            states.long(),
            name=test_set,
            judge=lambda tokens: judged(tokens, puzzles),
            inputs={"puzzles": states},
            seed=options.get("seed", 0),
        )
    return [found[part][index] for part, index in place]


def diagnosed(
    backbone: Backbone, store: Artefacts, setting: Setting, test_set: str, n_puzzles: int, *, seed: int = 0
) -> dict[str, Any]:
    """What :func:`maskmi.sudoku.diagnosis.diagnose` says of a setting on the first puzzles of a set, and its names."""
    settings, decoder = setting
    puzzles = puzzle_set(test_set, n_puzzles).puzzles
    states = torch.from_numpy(puzzles)

    def make() -> dict[str, Any]:
        run = decode(backbone.model, states.long(), decoder, seed=seed, batch_size=512, keep_trace=True)
        return diagnose(puzzles, run.trace)

    found = store.get_or_make(
        "diagnosed",
        make,
        parameters={"settings": settings, "seed": seed},
        inputs=backbone.identity | {"puzzles": states, "head": head_of(decoder)},
        code=["maskmi.sudoku.diagnosis", *modules_of(decoder)],
    )
    return {"contender": contender_of(settings), "label": label_of(settings), **found}
