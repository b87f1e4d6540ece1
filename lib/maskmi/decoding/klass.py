"""Every position that is confident and has stopped changing (KLASS, arXiv 2511.05664)."""

from dataclasses import dataclass

import torch

from maskmi.decoding.select import first
from maskmi.decoding.state import Decision, View
from maskmi.model import kl_divergence


@dataclass(frozen=True)
class KLASS:
    """Commit every position that is both confident and stable; where none is, the ``fallback`` most confident.

    Confident: largest probability above ``threshold``. Stable: ``KL(p now ‖ p one step before)`` below ``kl`` nats in
    each of the last ``history`` steps. So nothing is stable before step ``history``, counted from 0.

    Source: arXiv 2511.05664, whose settings are history 2, thresholds of 0.6 to 0.9 and ``kl`` of 0.01 to 0.015; its
    fallback is the fixed schedule of the backbone, by default one position a step. The paper decodes block by block;
    here the sequence is one block. Its ``kl`` is for vocabularies of 100,000 and steps that change little: with 9
    digits a distribution moves in jumps, so sweep it.
    """

    threshold: float = 0.9
    kl: float = 0.01
    history: int = 2
    fallback: int = 1

    def __post_init__(self):
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is a probability in 0 … 1, not {self.threshold}")
        if not self.kl >= 0:
            raise ValueError(f"kl must be 0 nats or more, not {self.kl}")
        for name in ("history", "fallback"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    def __call__(self, view: View) -> Decision:
        change = kl_divergence(view.log_probs, view.recall("klass_log_probs", view.log_probs))
        change = change.masked_fill(view.step[:, None] == 0, torch.inf)  # there is nothing to compare with yet
        never = torch.full_like(change, torch.inf)[:, :, None].expand(-1, -1, self.history)
        changes = torch.cat([view.recall("klass_changes", never)[:, :, 1:], change[:, :, None]], dim=2)
        view.memory["klass_log_probs"], view.memory["klass_changes"] = view.log_probs, changes
        ready = view.masked & (view.confidence > self.threshold) & (changes < self.kl).all(2)
        fallback = first(-view.confidence, view.masked, self.fallback)
        return Decision(torch.where(ready.any(1, keepdim=True), ready, fallback))
