"""As many positions a step as a budget of entropy and pairwise dependence allows (arXiv 2605.20187)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from maskmi.decoding.select import rising
from maskmi.decoding.state import Decision, View


@dataclass(frozen=True)
class MIGuided:
    """Commit greedily while ``cost_i = alpha H_i + lam * sum of I_ij over the j already taken`` fits the budget.

    Source: arXiv 2605.20187. The paper leaves open what the budget bounds, so both readings are here:

    - ``reading='threshold'``: each taken position's own cost is at most ``budget``;
    - ``reading='cumulative'``: the sum of the costs is at most ``budget``, so every take leaves less.

    The first position is always taken, and its cost counts. ``order`` says which position is tried next:

    - ``'entropy'`` (paper): by rising entropy, once through all; what does not fit is skipped, the scan goes on;
    - ``'least_cost'``: always the one of least current cost, until that one does not fit (equal costs: by entropy);
    - ``'pivot'`` (ours): first the pivot, on which the other masked positions depend most (largest ``sum of I_ij`` over
      all masked j), then as ``'least_cost'``. Its value settles much of what was open, so that later steps have less
      dependence to ignore; needs a matrix.

    ``lam=0`` is the entropy-only ablation and needs no matrix. ``alpha<1``, down to 0, charges mainly the dependence
    that the step ignores: entropy is an error where one value is right, but not where samples are to be diverse.
    With another matrix than mutual information (total variation, attention) the budget is in that matrix' unit.
    Negative entries of the matrix, an artefact of inconsistent conditionals, count as 0. Ties go to the lower
    position. The step's ``spent`` is the sum of the costs, in both readings.
    """

    budget: float
    lam: float = 1.0
    pairwise: Callable | None = None  # a source of maskmi.decoding.sources
    alpha: float = 1.0
    reading: str = "threshold"
    order: str = "entropy"

    def __post_init__(self):
        for name in ("budget", "lam", "alpha"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.reading not in ("threshold", "cumulative"):
            raise ValueError(f"reading must be 'threshold' or 'cumulative', not {self.reading!r}")
        if self.order not in ("entropy", "least_cost", "pivot"):
            raise ValueError(f"order must be 'entropy', 'least_cost' or 'pivot', not {self.order!r}")
        for name, asked in (("lam > 0", self.lam > 0), ("order 'pivot'", self.order == "pivot")):
            if asked and self.pairwise is None:
                raise ValueError(f"{name} needs a matrix: name its source as pairwise=…, for example HeadMatrix(head)")

    def __call__(self, view: View) -> Decision:
        own = self.alpha * view.entropy
        order = rising(view.entropy, view.masked)
        step = self._scan if self.order == "entropy" else self._cheapest
        return step(view, own, order)

    def _scan(self, view: View, own: Tensor, order: Tensor) -> Decision:
        rows = torch.arange(len(order), device=order.device)
        own_sorted, masked_sorted = own.gather(1, order), view.masked.gather(1, order)
        commit = torch.zeros_like(view.masked)
        taken_cost = torch.zeros_like(own)  # lam * sum of I_ij over the taken j, for every i
        spent = own.new_zeros(len(own))
        for n in range(int(view.masked.sum(1).max())):
            # Entropies rise from here on and dependence only adds: what own cost alone can't fit never will.
            left = self._left(spent)
            open_ = masked_sorted[:, n] & (own_sorted[:, n] <= left) if n else masked_sorted[:, n]
            if not open_.any():
                break
            position = order[:, n]
            cost = own_sorted[:, n] + taken_cost[rows, position]
            take = open_ & (cost <= left) if n else open_
            commit[rows, position] |= take
            spent = torch.where(take, spent + cost, spent)
            self._charge(taken_cost, view, rows, position, take)
        return Decision(commit, spent=spent)

    def _cheapest(self, view: View, own: Tensor, order: Tensor) -> Decision:
        rows = torch.arange(len(order), device=order.device)
        rank = order.argsort(1)  # of each position, by rising entropy
        commit = torch.zeros_like(view.masked)
        taken_cost = torch.zeros_like(own)
        spent = own.new_zeros(len(own))
        going = view.masked.any(1)
        for n in range(int(view.masked.sum(1).max())):
            costs = (own + taken_cost).masked_fill(~view.masked | commit, torch.inf)
            key = costs
            if self.order == "pivot" and not n:
                key = -view.pairwise.clamp_min(0).sum(2).masked_fill(~view.masked, -torch.inf)
            position = rank.masked_fill(key > key.amin(1)[:, None], order.shape[1]).argmin(1)
            cost = costs[rows, position]
            going = going & (cost < torch.inf)
            if n:
                going = going & (cost <= self._left(spent))
            if not going.any():
                break
            commit[rows, position] |= going
            spent = torch.where(going, spent + cost, spent)
            self._charge(taken_cost, view, rows, position, going)
        return Decision(commit, spent=spent)

    def _left(self, spent: Tensor) -> Tensor:
        return self.budget - spent if self.reading == "cumulative" else torch.full_like(spent, self.budget)

    def _charge(self, taken_cost: Tensor, view: View, rows: Tensor, position: Tensor, take: Tensor) -> None:
        if self.lam > 0:
            row = view.pairwise[rows, position].clamp_min(0)
            taken_cost += self.lam * row.masked_fill(~take[:, None], 0)
