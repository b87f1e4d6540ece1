"""Any decoder with a check after each step: values that the others don't support are masked again."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from maskmi.decoding.leave_one_out import leave_one_out
from maskmi.decoding.select import first
from maskmi.decoding.state import Decision, View


@dataclass(frozen=True)
class Corrected:
    """Commit what ``inner`` says, then mask again what has a leave-one-out probability under ``threshold``.

    Our own combination: ``inner`` (say MI-guided) bounds the dependence that a step ignores, and the check repairs
    what slips through. It looks at the state *after* the step, so it also sees values of one step that contradict each
    other (:class:`WINO` checks the state before the step, and never the last one). A value withdrawn in the step that
    chose it was never written: it is in no trace, and costs its pass all the same.

    Since its last check a sequence must have got at least one position further: of the values under the threshold only
    the least probable are masked again, as many as leave that, and one of the step's own stays. Where none may be,
    nothing is checked. So decoding ends.

    Args:
        inner: a decoder; its ``pairwise`` and ``needs_attention`` are passed on. Its own masking again is heeded first.
        threshold: a probability. The probabilities are exact: one pass, counted, for each position checked.
        every: check after every so many steps, and where nothing is masked any more.
        dependence: check only positions whose predicted dependence on what was committed since they were last checked
            (or committed) is more than this: the sum of the matrix' entries, in its unit, negative ones as 0, those of
            their own step included. The matrix holds masked pairs only, so the entry of a pair is that from the step in
            which the first of the two was committed. None: check all. Needs an ``inner`` with a matrix.
    """

    inner: Callable[[View], Decision]
    threshold: float = 0.5
    every: int = 1
    dependence: float | None = None

    def __post_init__(self):
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold is a probability above 0, at most 1, not {self.threshold}")
        if self.every < 1:
            raise ValueError(f"every must be at least 1, not {self.every}")
        if self.dependence is not None:
            if not self.dependence >= 0:
                raise ValueError(f"dependence must be 0 or more, or None, not {self.dependence}")
            if self.pairwise is None:
                raise ValueError("dependence needs a matrix: give an inner decoder that has one as pairwise=…")

    @property
    def pairwise(self) -> Callable | None:
        return getattr(self.inner, "pairwise", None)

    @property
    def needs_attention(self) -> bool:
        return getattr(self.inner, "needs_attention", False)

    def __call__(self, view: View) -> Decision:
        decision = self.inner(view)
        values = view.proposal if decision.values is None else decision.values
        remask = torch.zeros_like(view.masked) if decision.remask is None else decision.remask
        # What the loop would do: commit the surest position where the inner decoder commits nothing.
        idle = ~decision.commit.any(1, keepdim=True)
        commit = decision.commit | (first(-view.confidence, view.masked, 1) & idle)
        values = torch.where(idle, view.proposal, values)
        after = torch.where(commit, values, view.tokens).masked_fill(remask, view.mask)
        masked = after == view.mask

        left = masked.sum(1)
        left_before = view.recall("corrected_left", view.masked.sum(1))  # when it was last checked
        due = ((view.step + 1) % self.every == 0) | (left == 0)
        view.memory["corrected_left"] = torch.where(due, torch.minimum(left_before, left), left_before)
        allowed = (left_before - 1 - left).clamp_min(0) * due
        checked = ~masked & ~view.given & (allowed > 0)[:, None]
        if self.dependence is not None:
            exposure = self._exposure(view, commit, remask)
            checked &= exposure > self.dependence
            view.memory["corrected_exposure"] = exposure.masked_fill(checked | masked, 0)
        own = leave_one_out(view, checked, after)
        low = checked & (own < math.log(self.threshold))
        withdrawn = first(own, low, allowed)
        # Counting from an earlier step, all of this one's might go: the most probable of them stays.
        none_left = ~(commit & ~withdrawn).any(1, keepdim=True)
        withdrawn &= ~(first(-own, commit, 1) & none_left)
        view.memory["corrected_left"] += withdrawn.sum(1)
        return Decision(commit & ~withdrawn, values, remask | (withdrawn & ~view.masked), decision.spent)

    def _exposure(self, view: View, commit: Tensor, remask: Tensor) -> Tensor:
        """The predicted dependence ``[B, L]`` of visible positions on what was committed since they were checked."""
        matrix = view.pairwise.clamp_min(0)
        rows = view.recall("corrected_rows", torch.zeros_like(matrix))  # of each position, when it was committed
        rows = torch.where(commit[:, :, None], matrix, rows)
        view.memory["corrected_rows"] = rows
        exposure = view.recall("corrected_exposure", torch.zeros_like(matrix[:, 0]))
        return (exposure + rows.masked_fill(~commit[:, None, :], 0).sum(2)).masked_fill(remask, 0)
