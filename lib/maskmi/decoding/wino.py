"""Revocable decoding: confident values are committed, and those that lose support are masked again (WINO)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from maskmi.decoding.select import first
from maskmi.decoding.state import Decision, View
from maskmi.model import log_probabilities

ROWS_AT_ONCE = 1024  # bounds the hidden states that are held at a time


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


def require_check(check: str) -> None:
    """Raises ValueError unless ``check`` names a way to see the probability of a visible value."""
    if check not in ("leave_one_out", "in_place"):
        raise ValueError(f"check must be 'leave_one_out' or 'in_place', not {check!r}")


def own_log_prob(view: View, which: Tensor, check: str) -> Tensor:
    """Log-probability ``[B, L]`` of the values at the visible positions ``which [B, L]``, 0 (certain) elsewhere.

    ``check='leave_one_out'``: by :func:`leave_one_out`; ``'in_place'``: from the step's own pass, the value in sight.
    """
    if check == "leave_one_out":
        return leave_one_out(view, which)
    value = view.tokens.masked_fill(~which, 0)
    return view.log_probs.gather(2, value[:, :, None]).squeeze(2).masked_fill(~which, 0)


def leave_one_out(view: View, which: Tensor, tokens: Tensor | None = None) -> Tensor:
    """Log-probability ``[B, L]`` of the values at the positions ``which [B, L]``, each with itself alone masked.

    One pass, counted, for each position of ``which``; elsewhere 0 (certain), at no pass. The state is ``tokens
    [B, L]``, by default that of the view; it must hold values at ``which``.
    """
    tokens = view.tokens if tokens is None else tokens
    found = torch.zeros_like(view.entropy)
    row, position = which.nonzero(as_tuple=True)
    for rows, positions in zip(row.split(ROWS_AT_ONCE), position.split(ROWS_AT_ONCE), strict=True):
        if len(rows):
            each = torch.arange(len(rows), device=rows.device)
            without = tokens[rows].index_put((each, positions), rows.new_tensor(view.mask))
            log_probs = log_probabilities(view.evaluate(without, rows).logits[each, positions])
            value = tokens[rows, positions]
            found[rows, positions] = log_probs.gather(1, value[:, None]).squeeze(1).to(found)
    return found
