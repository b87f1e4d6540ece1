"""Which decoders the protein studies run, at which settings, and the paper's figures to stand beside."""

from collections.abc import Iterator, Mapping

from maskmi.decoding import (
    AttentionMatrix,
    ConfidenceThreshold,
    HeadMatrix,
    Naive,
    Sequential,
)
from maskmi.head import PairHead
from maskmi.settings import Setting, each_once, entropy_bounded_setting, mi_setting

#: arXiv 2605.20187, ESM-C: decoder, settings, passes, Jensen-Shannon divergence (of which variable it does not say).
PAPER = [
    ("sequential", {"order": "entropy"}, 74.8, 0.093),
    ("naive", {"k": 4}, 19.1, 0.185),
    ("naive", {"k": 8}, 9.8, 0.196),
    ("naive", {"k": 12}, 6.2, 0.218),
    ("mi_guided", {"budget": 2.0, "lam": 1.0, "alpha": 1.0}, 15.3, 0.136),
    ("mi_guided", {"budget": 4.0, "lam": 1.0, "alpha": 1.0}, 10.0, 0.174),
]
LABEL = "mixture"  # the label of the head that guides; on these models the paper's estimator is often negative


def short_sweep(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    """The paper's table, random order beside it, and the rules that count dependence only."""
    for order in ("entropy", "random"):
        yield {"decoder": "sequential", "order": order}, Sequential(order)
    for k in (4, 8, 12):
        yield {"decoder": "naive", "k": k}, Naive(k)
    for budget in (0.5, 2.0, 5.0):
        yield entropy_bounded_setting(budget)
    source = HeadMatrix(heads[LABEL])
    for budget in (2.0, 4.0):
        yield mi_setting(budget, source, f"head: {LABEL}")
    for order in ("least_cost", "pivot"):
        for budget in (0.03, 0.1, 0.3):
            yield mi_setting(budget, source, f"head: {LABEL}", alpha=0.0, order=order)


def page_sweep(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    """One residue a step, entropy bounding, and dependence alone, to be watched step by step."""
    yield {"decoder": "sequential", "order": "entropy"}, Sequential()
    yield entropy_bounded_setting(5.0)
    yield mi_setting(0.1, HeadMatrix(heads[LABEL]), f"head: {LABEL}", alpha=0.0, order="pivot")


def whole_sweep(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    """Every decoder over its range, after the settings of :func:`short_sweep`; each setting once."""
    return each_once(_whole(heads))


def _whole(heads: Mapping[str, PairHead]) -> Iterator[Setting]:
    yield from short_sweep(heads)
    for threshold in (0.3, 0.5, 0.7, 0.9):
        yield {"decoder": "confidence_threshold", "threshold": threshold}, ConfidenceThreshold(threshold)
    for budget in (1.0, 10.0, 20.0):
        yield entropy_bounded_setting(budget)
    source = HeadMatrix(heads[LABEL])
    for lam in (0.0, 0.5, 2.0, 4.0):
        for budget in (2.0, 4.0):
            yield mi_setting(budget, source, f"head: {LABEL}", lam=lam)
    for budget in (1.0, 8.0, 16.0):
        yield mi_setting(budget, source, f"head: {LABEL}")
    for alpha, order in ((0.0, "entropy"), (0.1, "entropy"), (0.1, "least_cost")):
        for budget in (0.1, 0.3, 1.0):
            yield mi_setting(budget, source, f"head: {LABEL}", alpha=alpha, order=order)
    others = {f"head: {name}": HeadMatrix(head) for name, head in heads.items() if name != LABEL}
    for name, other in {**others, "attention": AttentionMatrix()}.items():
        for order in ("least_cost", "pivot"):
            for budget in (0.03, 0.1, 0.3):
                yield mi_setting(budget, other, name, alpha=0.0, order=order)
