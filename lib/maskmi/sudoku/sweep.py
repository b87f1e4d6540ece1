"""Which decoders the Sudoku study runs, at which settings, and the paper's figures to stand beside."""

from collections.abc import Iterator, Mapping
from typing import Any

from maskmi.decoding import (
    AttentionMatrix,
    ConfidenceFactor,
    ConfidenceThreshold,
    HeadMatrix,
    Margin,
    Naive,
    ProbedMatrix,
    Sequential,
)
from maskmi.head import PairHead
from maskmi.settings import Setting, each_once, entropy_bounded_setting, mi_setting

#: arXiv 2605.20187, the Sudoku table: decoder, settings, passes, share solved.
PAPER = [
    ("sequential", {"order": "entropy"}, 53.9, 0.616),
    ("naive", {"k": 4}, 14.9, 0.524),
    ("naive", {"k": 7}, 9.0, 0.368),
    ("entropy_bounded", {"budget": 0.2, "proxy": "entropy"}, 15.3, 0.610),
    ("entropy_bounded", {"budget": 0.5, "proxy": "entropy"}, 9.9, 0.512),
    ("mi_guided", {"budget": 0.3, "lam": 1.0, "alpha": 1.0}, 15.2, 0.636),
    ("mi_guided", {"budget": 0.6, "lam": 1.0, "alpha": 1.0}, 9.7, 0.562),
]
BUDGETS = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0)  # nats


def short_sweep(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    """The paper's table: sequential, naive, entropy bounded and MI-guided at its settings."""
    source = HeadMatrix(heads["entropy_drop"])
    yield {"decoder": "sequential", "order": "entropy"}, Sequential()
    for k in (4, 7):
        yield {"decoder": "naive", "k": k}, Naive(k)
    for budget in (0.2, 0.5):
        yield entropy_bounded_setting(budget)
    for budget in (0.3, 0.6):
        yield mi_setting(budget, source, "head")
    yield {"decoder": "confidence_threshold", "threshold": 0.9}, ConfidenceThreshold(0.9)


def whole_sweep(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    """Every decoder over its range, after the settings of :func:`short_sweep`; each setting once."""
    return each_once(_whole(heads))


def chosen_sweep(name: str, heads: Mapping[str, PairHead], test_set: str) -> list[Setting]:
    """The ``short`` or the ``whole`` sweep; on other sets than *unique* always the short one."""
    return list(whole_sweep(heads) if name == "whole" and test_set == "unique" else short_sweep(heads))


def _whole(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    head = HeadMatrix(heads["entropy_drop"])
    yield from short_sweep(heads)
    for k in (2, 3, 10):
        yield {"decoder": "naive", "k": k}, Naive(k)
    for k in (2, 4, 7):
        yield {"decoder": "margin", "k": k}, Margin(k)
    for threshold in (0.6, 0.8, 0.95, 0.99):
        yield {"decoder": "confidence_threshold", "threshold": threshold}, ConfidenceThreshold(threshold)
    for factor in (0.03, 0.1, 0.3, 1.0):
        yield {"decoder": "confidence_factor", "factor": factor}, ConfidenceFactor(factor)
    for budget in (1e-5, 1e-4, 0.001, 0.003, *BUDGETS):  # of a strong model entropies are tiny
        yield entropy_bounded_setting(budget)
    for proxy in ("confidence", "margin"):
        for budget in (0.1, 0.5):
            yield entropy_bounded_setting(budget, proxy)
    for budget in BUDGETS:
        yield mi_setting(budget, head, "head")
    for budget in (0.03, 0.1, 0.3):
        yield mi_setting(budget, head, "head", reading="threshold")
    for lam in (0.0, 0.5, 2.0, 4.0):  # 0 is the ablation to entropy alone
        for budget in (0.3, 0.6):
            yield mi_setting(budget, head, "head", lam=lam)
    for alpha in (0.0, 0.3):
        for order in ("entropy", "least_cost"):
            for budget in (0.03, 0.1, 0.3):
                yield mi_setting(budget, head, "head", alpha=alpha, order=order)
    for label in ("mixture", "tv"):
        if label in heads:
            for budget in (0.1, 0.3, 0.6):
                yield mi_setting(budget, HeadMatrix(heads[label]), f"head: {label}")
    for budget in (0.1, 0.3, 0.6):
        yield mi_setting(budget, AttentionMatrix(), "attention")


def oracle_sweep(tolerance: float) -> Iterator[Setting]:
    """MI-guided with the matrix probed at every step; for the Jacobian the exact table is needed."""
    for budget in (0.3, 0.6):
        yield mi_setting(budget, ProbedMatrix("entropy_drop", tolerance), "probed")
    yield mi_setting(0.3, ProbedMatrix("mixture", tolerance), "probed: mixture")
    yield mi_setting(0.03, ProbedMatrix("entropy_drop", tolerance), "probed", alpha=0.0, order="least_cost")


def jacobian_sweep() -> Iterator[Setting]:
    """MI-guided by the categorical Jacobian, in its own unit, so at a budget found by trial."""
    for budget in (0.3, 1.0):
        yield mi_setting(budget, ProbedMatrix("jacobian"), "probed: jacobian")


def page_sweep(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    """One setting of each kind of decoder in the paper's table, to be watched step by step."""
    yield {"decoder": "sequential", "order": "entropy"}, Sequential()
    yield {"decoder": "naive", "k": 4}, Naive(4)
    yield entropy_bounded_setting(0.2)
    yield mi_setting(0.3, HeadMatrix(heads["entropy_drop"]), "head")


def paired_sweep(heads: Mapping[str, PairHead], study: str) -> Iterator[Setting]:
    """The settings of the claim: entropy bounding, closely spaced, against MI-guided as published and as it does best.

    The weights beside the published ones are those that led on the first thousand puzzles of another set. Entropies of
    the strong backbone are tiny, so it has smaller budgets too; the plain one would take more passes there than any of
    the others.
    """
    strong = study == "sudoku"
    for budget in (*((1e-4, 0.001, 0.003) if strong else ()), 0.01, 0.03, 0.1, 0.2, 0.3, 0.5):
        yield entropy_bounded_setting(budget)
    head = HeadMatrix(heads["entropy_drop"])
    for budget in (*((0.1,) if strong else ()), 0.3, 0.6):
        yield mi_setting(budget, head, "head")
    yield mi_setting(0.3, head, "head", alpha=0.3)
    yield mi_setting(0.6, head, "head", lam=4.0)
    yield mi_setting(0.3, None, "none", lam=0.0)


def paper_row(settings: Mapping[str, Any]) -> dict[str, float] | None:
    """The paper's passes and share solved at these settings, if it has them (its budget's reading: cumulative)."""
    if settings.get("temperature"):
        return None
    standard = {"reading": "cumulative", "order": "entropy", "matrix": "head"}
    if settings["decoder"] == "mi_guided" and any(settings[key] != value for key, value in standard.items()):
        return None
    for decoder, own, passes, solved in PAPER:
        if decoder == settings["decoder"] and all(settings.get(key) == value for key, value in own.items()):
            return {"passes": passes, "solved": solved}
    return None
