"""A threshold that follows the confidences so far, and backtracking (Saber, arXiv 2510.18165)."""

from dataclasses import dataclass

import torch

from maskmi.decoding.leave_one_out import own_log_prob, require_check
from maskmi.decoding.select import first
from maskmi.decoding.state import Decision, View


@dataclass(frozen=True)
class Saber:
    """Commit what is surer than commitments were so far on average, then take back what has lost most confidence.

    Source: Saber, arXiv 2510.18165, section 4, after the code published with it (github.com/zhaoyMa/Saber), which is
    more definite than the paper. Of one step:

    - ``tau`` is the mean, over the positions ever committed, of c when they were last committed (1 in the first step).
      Every masked position with c > ``tau`` is committed; if these are fewer than ``n``, the ``n`` of largest c are;
    - of the K positions so committed and all committed before, those whose c rose least (fell most) since the step
      before are masked again: ``min(max(n // 2, ceil(K / 8)), K - 1)`` of them, none where nothing was left masked.

    So a step fills at least one position more than it takes back. A position may be taken back in the very step that
    committed it: then it stays masked, and counts for ``tau`` all the same. In the first step the c of the step before
    is 0. With sampled values c is still the largest probability.

    What c is at a visible position: with ``check='in_place'``, as published, its largest probability in the step's own
    pass, its value in sight. A model that was trained on masked positions only has learned nothing there; with
    ``check='leave_one_out'`` it is the probability of its value with the position itself masked: one pass, counted, for
    each position committed before, in every step but the last.
    """

    n: int = 2
    check: str = "in_place"

    def __post_init__(self):
        if self.n < 1:
            raise ValueError(f"n must be at least 1, not {self.n}")
        require_check(self.check)

    def __call__(self, view: View) -> Decision:
        at_commitment = view.recall("saber_at_commitment", torch.full_like(view.confidence, torch.nan))
        tau = at_commitment.nanmean(1, keepdim=True).nan_to_num(nan=1.0)
        sure = view.masked & (view.confidence > tau)
        enough = sure.sum(1, keepdim=True) >= self.n
        commit = torch.where(enough, sure, first(-view.confidence, view.masked, self.n))
        view.memory["saber_at_commitment"] = torch.where(commit, view.confidence, at_commitment)

        accepted = commit.sum(1)
        going_on = accepted < view.masked.sum(1)
        before = ~view.masked & ~view.given
        now = view.confidence
        if self.check == "leave_one_out":
            checked = before & going_on[:, None]
            now = torch.where(checked, own_log_prob(view, checked, self.check).exp(), now)
        rise = now - view.recall("saber_confidence", torch.zeros_like(now))
        view.memory["saber_confidence"] = now
        count = torch.minimum(((accepted + 7) // 8).clamp_min(self.n // 2), accepted - 1) * going_on
        taken_back = first(rise, commit | before, count)
        return Decision(commit & ~taken_back, remask=taken_back & before)
