"""A fixed number of steps, each of which plans anew what stays masked (P2, arXiv 2502.03540)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskmi.decoding.leave_one_out import own_log_prob, require_check
from maskmi.decoding.select import at_positions, rising
from maskmi.decoding.state import Decision, View

PLAN = 21  # noise stream


@dataclass(frozen=True)
class P2:
    """After step i of ``steps``, the worst ``floor(N (1 - i / steps))`` of N positions are masked, whatever they were.

    Source: path planning with self-planning, arXiv 2502.03540, and the code published with it, with its schedule
    kappa(t) = t. N counts all positions that are not given. The score of a masked position is the log-probability of
    the value proposed for it, that of a visible one is ``eta`` times the log-probability of its value. Those of least
    score are masked after the step (equal scores: masked ones first, then by position), the other masked ones are
    committed. ``eta=0`` never masks again, ``eta>1`` masks again more; published: 1 by default, swept.

    ``score='random'`` draws the scores as logarithms of uniform noise, anew in every step: the order of a plain masked
    diffusion sampler with ``eta=0``, discrete flow matching with more.

    What a visible value's probability is: with ``check='in_place'``, as published, from the step's own pass, the value
    in sight; a model that was trained on masked positions only has learned nothing there. (The published code scores
    the value drawn anew for the position; here it is the value that stands there.) With ``check='leave_one_out'`` the
    position itself is masked: one pass, counted, for each visible position that is not given, in every step but the
    last. Drawn values differ from the published sampler in that the draw at a position stays the same while it stays
    masked.

    Where the plan commits nothing, which happens with more steps than positions, one more position is left unmasked
    than are masked now. So no sequence takes more than ``steps`` steps.
    """

    steps: int
    eta: float = 1.0
    check: str = "in_place"
    score: str = "log_prob"

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")
        if not 0 <= self.eta < float("inf"):
            raise ValueError(f"eta must be finite and 0 or more, not {self.eta}")
        require_check(self.check)
        if self.score not in ("log_prob", "random"):
            raise ValueError(f"score must be 'log_prob' or 'random', not {self.score!r}")

    def __call__(self, view: View) -> Decision:
        ours = ~view.given
        left = ours.sum(1) * (self.steps - view.step - 1).clamp_min(0) // self.steps
        order = self._order(view, self._scores(view, left), ours)
        worst = _first(order, left) & ours
        idle = ~(view.masked & ~worst).any(1)
        worst = _first(order, torch.where(idle, view.masked.sum(1) - 1, left)) & ours
        return Decision(view.masked & ~worst, remask=worst & ~view.masked)

    def _scores(self, view: View, left: Tensor) -> Tensor:
        visible = ~view.masked & ~view.given
        if self.score == "random":
            score = view.noise(PLAN, every_step=True).log()
        else:
            needed = visible & (left > 0)[:, None] if self.eta else torch.zeros_like(visible)
            score = torch.where(view.masked, view.proposal_log_prob, own_log_prob(view, needed, self.check))
        score = score.clamp_min(torch.finfo(score.dtype).min)  # eta 0 would turn -inf into NaN
        return torch.where(visible, self.eta * score, score)

    def _order(self, view: View, score: Tensor, ours: Tensor) -> Tensor:
        """Positions by rising score, given ones last; of equal scores the masked positions come first."""
        masked_first = rising((~view.masked).to(score), ours)
        rank = rising(score.gather(1, masked_first), ours.gather(1, masked_first))
        return masked_first.gather(1, rank)


def _first(order: Tensor, count: Tensor) -> Tensor:
    rank = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return at_positions(order, rank < count[:, None])
