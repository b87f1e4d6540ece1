"""The action after which least is left open, found by looking one step ahead (Info-Gain, arXiv 2602.18176)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskmi.decoding.select import first
from maskmi.decoding.state import Decision, View
from maskmi.model import entropy, log_probabilities
from maskmi.noise import gumbel

STREAM = 12  # of the noise, see maskmi.decoding.state


@dataclass(frozen=True)
class InfoGain:
    """Commit the one of several sets of ``k`` positions that costs little and leaves little uncertainty (nats).

    Candidate sets: the k most confident positions, and ``candidates - 1`` times the k largest of ``c / temperature``
    plus Gumbel noise. Each distinct one is filled in and evaluated, a pass each; taken is the one that maximises
    ``-(sum of H over its members) - (mean of H, after filling it in, over what is still masked)``, of equals the first.
    No look-ahead is made

    - where some position has ``c >= bypass``: then all of those are committed (``bypass=None``: never);
    - where at most k positions are left, or all candidates are the same set.

    Source: arXiv 2602.18176 and its code: 8 candidates, temperature 0.1 or 0.2, bypass 0.8 or 0.9. That code varies:
    in its later form at most k positions bypass, each candidate draws values of its own, and the pass of the winning
    candidate serves as the next step's. Here all candidates fill in the values that would be committed, so that
    looking ahead chooses positions only, and the next step's pass is made and counted again.
    """

    k: int = 1
    candidates: int = 8
    temperature: float = 0.1
    bypass: float | None = 0.9

    def __post_init__(self):
        for name in ("k", "candidates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be finite and above 0, not {self.temperature}")
        if self.bypass is not None and not 0 <= self.bypass <= 1:
            raise ValueError(f"bypass is a probability in 0 … 1, or None, not {self.bypass}")

    def __call__(self, view: View) -> Decision:
        commit = first(-view.confidence, view.masked, self.k)
        open_ = view.masked.sum(1) > self.k
        if self.bypass is not None:
            sure = view.masked & (view.confidence >= self.bypass)
            commit = torch.where(sure.any(1, keepdim=True), sure, commit)
            open_ = open_ & ~sure.any(1)
        rows = open_.nonzero().squeeze(1)
        if len(rows) and self.candidates > 1:
            actions = torch.cat([commit[rows, None], self._perturbed(view, rows)], dim=1)
            score = self._look_ahead(view, rows, actions)
            commit[rows] = actions[torch.arange(len(rows), device=rows.device), score.argmax(1)]
        return Decision(commit)

    def _perturbed(self, view: View, rows: Tensor) -> Tensor:
        """Candidate sets ``[R, candidates - 1, L]`` by noisy confidence."""
        masked = view.masked[rows, None].expand(-1, self.candidates - 1, -1)
        number = torch.arange(1, self.candidates, device=rows.device)[:, None]
        position = torch.arange(masked.shape[2], device=rows.device)
        noise = gumbel(view.seed, STREAM, view.ids[rows, None, None], position, view.step[rows, None, None], number)
        key = view.confidence[rows, None].double() / self.temperature + noise
        return first(-key.flatten(0, 1), masked.flatten(0, 1), self.k).view_as(masked)

    def _look_ahead(self, view: View, rows: Tensor, actions: Tensor) -> Tensor:
        """The objective ``[R, candidates]``, ``-inf`` for repetitions, and throughout where nothing else is there."""
        same = (actions[:, :, None] == actions[:, None]).all(3)
        fresh = ~same.tril(-1).any(2)
        row, candidate = (fresh & (fresh.sum(1, keepdim=True) > 1)).nonzero(as_tuple=True)
        action, origin = actions[row, candidate], rows[row]
        left = view.masked[origin] & ~action
        filled = torch.where(action, view.proposal[origin], view.tokens[origin])
        after = entropy(log_probabilities(view.evaluate(filled, origin).logits, where=left))
        cost = view.entropy[origin].masked_fill(~action, 0).sum(1)
        score = view.entropy.new_full(fresh.shape, -torch.inf)
        score[row, candidate] = -cost - after.masked_fill(~left, 0).sum(1) / left.sum(1)
        return score
