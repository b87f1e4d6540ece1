"""Revocable decoding: confident values are committed, and those that lose support are masked again (WINO)."""

import math
from dataclasses import dataclass

import torch

from maskmi.decoding.leave_one_out import own_log_prob, require_check
from maskmi.decoding.select import first
from maskmi.decoding.state import Decision, View


@dataclass(frozen=True)
class WINO:
    """Commit every c above ``threshold``; then mask again what has a probability under ``threshold_back``.

    Source: WINO ("wide in, narrow out"), arXiv 2507.18578, in the form that arXiv 2606.12232 evaluates, and the code
    published with it. Of one step:

    - every masked position with c > ``threshold`` is committed, at least the most confident one;
    - a position committed in an earlier step is masked again where the probability of its value, seen from the state
      before this step with the position itself masked, is under ``threshold_back``. Nothing is masked again in a step
      that commits a single position. If as many fall under it as the step before committed, or more, only the least
      probable are masked again, one fewer than that step committed. So n steps fill n positions at least.

    WINO estimates these leave-one-out probabilities for all positions in one pass, by appending masked "shadow" tokens
    that see every position but their own, which takes attention masks of one's own. Here ``check='leave_one_out'`` is
    exact: one pass, counted, for each committed position. ``check='in_place'`` asks for the probability of the value
    with the value in sight, at no further pass: a model that was trained on masked positions only has learned nothing
    there.

    Defaults from the published code, made for texts and vocabularies of 100,000: sweep both. Its cap on the positions
    a step may commit (0.7 of the masked ones, between 5 and 20) is left out.
    """

    threshold: float = 0.6
    threshold_back: float = 0.9
    check: str = "leave_one_out"

    def __post_init__(self):
        for name in ("threshold", "threshold_back"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability in 0 … 1, not {getattr(self, name)}")
        require_check(self.check)

    def __call__(self, view: View) -> Decision:
        confident = view.masked & (view.confidence > self.threshold)
        commit = confident | first(-view.confidence, view.masked, 1)
        accepted = commit.sum(1)
        last = view.recall("wino_accepted", accepted)  # in the first step there is nothing to mask again
        view.memory["wino_accepted"] = accepted
        if self.threshold_back == 0:
            return Decision(commit)
        checked = ~view.masked & ~view.given & (accepted > 1)[:, None]
        own = own_log_prob(view, checked, self.check)
        low = checked & (own < math.log(self.threshold_back))
        count = low.sum(1)
        return Decision(commit, remask=first(own, low, torch.where(count >= last, last - 1, count)))
