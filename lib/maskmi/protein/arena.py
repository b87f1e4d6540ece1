"""The arena of the protein studies: the sweeps of all decoders.

Ranges are those in which a decoder trades passes for quality on twenty amino acids at temperature 1, where a confident
position is one of some 0.3 and not of 0.9. Leave-one-out checks take a pass for every written residue and step,
hundreds a sequence.
"""

from collections.abc import Iterator, Mapping

from maskmi.arena_runs import ties
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
from maskmi.head import PairHead
from maskmi.protein.sweep import LABEL
from maskmi.settings import (
    Setting,
    corrected_setting,
    each_once,
    entropy_bounded_setting,
    grid,
    mi_setting,
    setting_of,
)

MATRIX = f"head: {LABEL}"
REFERENCE = f"MI ({MATRIX})"  # the contender that all are held against: MI-guided as published
OURS = "MI ("  # how the names of our own contenders begin


def short_arena(heads: Mapping[str, PairHead]) -> list[Setting]:
    """Every decoder at one to three settings, most of at most 15 passes."""
    return list(each_once(_short(heads)))


def whole_arena(heads: Mapping[str, PairHead]) -> list[Setting]:
    """Every decoder over its range, and the variants that take hundreds of passes, beside :func:`short_arena`."""
    return list(each_once([*_short(heads), *_simple(), *_rivals(), *_remasking(), *_guided(heads)]))


def tie_arena(name: str) -> list[Setting]:
    """Ensembles of two models, for the ``short`` or the ``whole`` sweep."""
    return ties((1, 2), (8, 16, 24), (2.0, 10.0, 20.0)) if name == "whole" else ties((2,), (16,), (10.0,))


def _short(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    head = HeadMatrix(heads[LABEL])
    yield from grid("sequential", Sequential, order=("entropy", "random"))
    yield from grid("naive", Naive, k=(8, 16))
    yield setting_of("margin", Margin, k=8)
    yield from grid("confidence_threshold", ConfidenceThreshold, threshold=(0.3, 0.7))
    yield setting_of("confidence_factor", ConfidenceFactor, factor=5.0)
    for budget in (2.0, 10.0):
        yield entropy_bounded_setting(budget)
    for budget in (2.0, 8.0, 24.0):
        yield mi_setting(budget, head, MATRIX)
    for order in ("least_cost", "pivot"):
        for budget in (0.03, 0.1, 0.3):
            yield mi_setting(budget, head, MATRIX, alpha=0.0, order=order)
    yield mi_setting(0.1, head, MATRIX, alpha=0.01, order="least_cost")
    yield mi_setting(1.0, head, MATRIX, alpha=0.1, order="least_cost")
    yield corrected_setting(mi_setting(8.0, head, MATRIX), 0.02, dependence=0.5)
    yield setting_of("klass", KLASS, threshold=0.5, kl=0.1, history=1, fallback=8)
    yield setting_of("punt", PUNT, epsilon=0.3)
    yield setting_of("info_gain", InfoGain, k=16, bypass=0.9)
    yield setting_of("depcap", DepCap, shortest=60, low=0.2, high=0.5, gamma=-6.0)
    yield setting_of("saber", Saber, n=8, check="in_place")
    yield setting_of("wino", WINO, threshold=0.5, threshold_back=0.2, check="in_place")
    yield from grid("remdm_cap", ReMDMCap, steps=10, eta=(0.0, 0.04))
    yield setting_of("remdm_loop", ReMDMLoop, steps=10, eta=0.02)
    yield from grid("p2", P2, steps=10, eta=(0.0, 1.0), check="in_place")
    yield setting_of("dapd", DAPD, threshold=0.01, confidence=0.5)
    yield setting_of("dilated", Dilated)
    yield setting_of("agdo", AGDO, k=8)


def _simple() -> Iterator[Setting]:
    """Decoders that rank positions, and nothing else."""
    yield from grid("naive", Naive, k=(4, 12, 24))
    yield from grid("margin", Margin, k=(4, 12, 16, 24))
    yield from grid("confidence_threshold", ConfidenceThreshold, threshold=(0.1, 0.2, 0.5, 0.9))
    yield from grid("confidence_factor", ConfidenceFactor, factor=(1.0, 2.0, 10.0, 20.0))
    for budget in (0.5, 5.0, 20.0, 40.0):
        yield entropy_bounded_setting(budget)
    yield from grid("agdo", AGDO, k=(4, 12, 16, 24))
    yield from grid("dilated", Dilated, block=(8, 16, 32))


def _rivals() -> Iterator[Setting]:
    """Decoders that ask which positions bear on one another."""
    yield from grid("klass", KLASS, threshold=(0.3, 0.5, 0.7), kl=(0.1, 1.0), history=1, fallback=(4, 8))
    yield setting_of("klass", KLASS, threshold=0.5, kl=0.1, history=2, fallback=8)
    yield from grid("punt", PUNT, epsilon=(0.03, 0.1, 1.0, 3.0))
    yield from grid("info_gain", InfoGain, k=(16, 32), bypass=(0.5, 0.9))
    for low, high in ((0.1, 0.3), (0.2, 0.5), (0.5, 0.9)):
        yield from grid("depcap", DepCap, shortest=60, low=low, high=high, gamma=(-4.0, -6.0, -8.0))
    yield setting_of("depcap", DepCap, shortest=16, low=0.2, high=0.5, gamma=-6.0)
    yield from grid("dapd", DAPD, threshold=(0.005, 0.01, 0.02, 0.04), confidence=(0.3, 0.5, 0.9))


def _remasking() -> Iterator[Setting]:
    """Decoders that mask again: as published, their check in place, and with the exact one."""
    yield from grid("saber", Saber, n=(4, 12, 16, 24), check="in_place")
    yield from grid("wino", WINO, threshold=(0.2, 0.5, 0.8), threshold_back=(0.05, 0.2, 0.8), check="in_place")
    for steps in (5, 10, 15, 30):
        yield from grid("remdm_cap", ReMDMCap, steps=steps, eta=(0.0, 0.04, 0.2))
        yield setting_of("remdm_loop", ReMDMLoop, steps=steps, eta=0.02)
        yield from grid("p2", P2, steps=steps, eta=(0.0, 0.5, 1.0), check="in_place")
    yield setting_of("saber", Saber, n=16, check="leave_one_out")
    yield from grid("wino", WINO, threshold=0.2, threshold_back=(0.05, 0.2), check="leave_one_out")
    yield from grid("p2", P2, steps=(5, 10), eta=1.0, check="leave_one_out")


def _guided(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    """MI-guided decoding as published, our variants of it, and what they become with a check."""
    head = HeadMatrix(heads[LABEL])
    for budget in (1.0, 4.0, 16.0, 48.0):
        yield mi_setting(budget, head, MATRIX)
    for budget in (4.0, 16.0):
        yield mi_setting(budget, head, MATRIX, lam=4.0)
    for alpha, order in ((0.0, "least_cost"), (0.01, "least_cost"), (0.0, "pivot")):
        for budget in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0):
            yield mi_setting(budget, head, MATRIX, alpha=alpha, order=order)
    for budget in (0.3, 1.0, 3.0):
        yield mi_setting(budget, head, MATRIX, alpha=0.1, order="least_cost")
    for name, other in heads.items():
        if name != LABEL:
            for budget in (0.03, 0.1, 0.3):
                yield mi_setting(budget, HeadMatrix(other), f"head: {name}", alpha=0.0, order="pivot")
    # Checks of all written residues at every step are left out: one contender is to have one number of samples.
    for dependence in (0.2, 0.5, 2.0):
        yield corrected_setting(mi_setting(16.0, head, MATRIX), 0.02, dependence=dependence)
        yield corrected_setting(mi_setting(0.3, head, MATRIX, alpha=0.0, order="pivot"), 0.02, dependence=dependence)
    yield corrected_setting(mi_setting(16.0, head, MATRIX), 0.1, dependence=0.5)
