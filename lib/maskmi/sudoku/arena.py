"""The arena of the Sudoku study: the sweeps of all decoders, and how they are run on a set of puzzles.

Ranges are those in which a decoder trades passes for solved puzzles here. Thresholds made for vocabularies of 100,000
are swept far from their defaults. Leave-one-out checks take a pass for every filled cell and step, hundreds a puzzle.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from maskmi import arena_runs
from maskmi.arena_runs import require_second, run_by_parts, ties
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
    HeadMatrix,
    InfoGain,
    Margin,
    Naive,
    ReMDMCap,
    ReMDMLoop,
    Saber,
    Sequential,
)
from maskmi.ensembles import run_ensembles
from maskmi.head import PairHead
from maskmi.settings import (
    Setting,
    corrected_setting,
    each_once,
    entropy_bounded_setting,
    grid,
    mi_setting,
    setting_of,
)
from maskmi.study import Backbone, Results
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
    return ties((1, 2), (7, 10, 14, 20), (0.01, 0.1, 0.5, 1.0)) if name == "whole" else ties((2,), (14,), (0.1,))


def _short(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    head = HeadMatrix(heads["entropy_drop"])
    yield setting_of("sequential", Sequential, order="entropy")
    yield from grid("naive", Naive, k=(7, 14))
    yield setting_of("margin", Margin, k=7)
    yield from grid("confidence_threshold", ConfidenceThreshold, threshold=(0.8, 0.95))
    yield from grid("confidence_factor", ConfidenceFactor, factor=(0.1, 1.0))
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
    yield from grid("naive", Naive, k=(2, 3, 4, 5, 10))
    yield from grid("margin", Margin, k=(4, 5, 14))
    yield from grid("confidence_threshold", ConfidenceThreshold, threshold=(0.6, 0.9, 0.98, 0.99))
    yield from grid("confidence_factor", ConfidenceFactor, factor=(0.03, 0.3, 0.6))
    for budget in (1e-5, 1e-4, 0.001, 0.03, 0.1, 0.3, 1.0, 2.0):
        yield entropy_bounded_setting(budget)
    yield from grid("agdo", AGDO, k=(4, 5, 10, 14))
    yield from grid("dilated", Dilated, block=(9, 18))


def _rivals() -> Iterator[Setting]:
    """Decoders that ask which positions bear on one another."""
    yield from grid("klass", KLASS, threshold=(0.8, 0.97, 0.99), kl=(0.1, 1.0), history=1)
    yield setting_of("klass", KLASS, threshold=0.9, kl=0.1, history=2)
    yield from grid("punt", PUNT, epsilon=(0.03, 0.3, 1.0, 3.0))
    for bypass in (0.9, 0.97, 0.99):
        yield from grid("info_gain", InfoGain, k=(2, 8), bypass=bypass)
    for gamma in (-2.0, -6.0, -10.0):  # blocks of 60: the whole puzzle is one
        for low, high in ((0.8, 0.95), (0.9, 0.99), (0.95, 0.995)):
            yield setting_of("depcap", DepCap, shortest=60, low=low, high=high, gamma=gamma)
    yield setting_of("depcap", DepCap, shortest=60, low=0.98, high=0.999, gamma=-6.0)
    yield setting_of("depcap", DepCap, shortest=27, low=0.9, high=0.99, gamma=-6.0)
    yield from grid("dapd", DAPD, threshold=(0.003, 0.01, 0.02), confidence=(0.95, 0.99))


def _remasking() -> Iterator[Setting]:
    """Decoders that mask again: as published, their check in place, and with the exact one."""
    yield from grid("saber", Saber, n=(2, 6, 8, 10, 14), check="in_place")
    yield from grid("wino", WINO, threshold=(0.9, 0.97, 0.99), threshold_back=(0.5, 0.9), check="in_place")
    for steps in (5, 10, 15):
        yield from grid("remdm_cap", ReMDMCap, steps=steps, eta=(0.0, 0.04))
        yield setting_of("remdm_loop", ReMDMLoop, steps=steps, eta=0.02)
        yield from grid("p2", P2, steps=steps, eta=(0.0, 0.5, 1.0), check="in_place")
    yield from grid("saber", Saber, n=(4, 8), check="leave_one_out")
    yield from grid("wino", WINO, threshold=(0.6, 0.9), threshold_back=0.9, check="leave_one_out")
    yield from grid("p2", P2, steps=(5, 10), eta=1.0, check="leave_one_out")


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
        n_dear: puzzles of the settings that :func:`maskmi.arena_runs.is_dear`, where fewer.
        second: the other model of the ensembles, which a sweep may hold only with it.
        options: of :func:`maskmi.study.decoded`.

    Raises:
        ValueError: for ensembles without a second model.
    """
    require_second(sweep, second)

    def part(name: str, settings: list[Setting]) -> Results:
        if name != "tie":
            n = min(n_dear, n_puzzles) if name == "dear" else n_puzzles
            return run_sweep(backbone, store, settings, test_set, n, **options)
        puzzles = puzzle_set(test_set, n_puzzles)
        states = torch.from_numpy(puzzles.puzzles)
        return run_ensembles(
            (backbone, second),
            store,
            settings,
            states.long(),
            name=test_set,
            judge=lambda tokens: judged(tokens, puzzles),
            inputs={"puzzles": states},
            seed=options.get("seed", 0),
        )

    return run_by_parts(sweep, part)


def diagnosed(
    backbone: Backbone, store: Artefacts, setting: Setting, test_set: str, n_puzzles: int, *, seed: int = 0
) -> dict[str, Any]:
    """What :func:`maskmi.sudoku.diagnosis.diagnose` says of a setting on the first puzzles of a set, and its names."""
    puzzles = puzzle_set(test_set, n_puzzles).puzzles
    states = torch.from_numpy(puzzles)
    return arena_runs.diagnosed(
        backbone,
        store,
        setting,
        states.long(),
        lambda trace: diagnose(puzzles, trace),
        inputs={"puzzles": states},
        code="maskmi.sudoku.diagnosis",
        seed=seed,
    )
