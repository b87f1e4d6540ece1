"""Several models decode the same sequence side by side and hand on the best state (TIE, arXiv 2606.16281)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maskmi.decoding.loop import Decoded
from maskmi.decoding.state import Decision, View
from maskmi.decoding.step import Network, Rows, checked_ids, distributions, take_step
from maskmi.model import MaskedModel, Output, mask_token, pad_token
from maskmi.noise import random_bits

DRAW = 22  # noise stream, for the seed of each model's own draws
SCORES = ("confidence", "entropy", "margin", "changes")


@torch.no_grad()
def decode_tie(
    models: Sequence[MaskedModel],
    tokens: Tensor,
    decoders: Callable[[View], Decision] | Sequence[Callable[[View], Decision]],
    *,
    steps: int = 4,
    score: str = "confidence",
    seed: int = 0,
    temperature: float = 0.0,
    sequence_ids: Tensor | None = None,
    batch_size: int = 256,
) -> Decoded:
    """Fill in every MASK of ``tokens [N, L]`` with several models of the same values; what is visible is kept.

    Source: trajectory-based iterative ensembling, arXiv 2606.16281. Each model has a trajectory of its own. In a round
    it takes ``steps`` steps on it; then every model evaluates every trajectory, and the best one overwrites the others.
    A trajectory's score is the mean, over all models and over its masked positions, of the largest probability
    (``'confidence'``), of minus the entropy (``'entropy'``), of the ``'margin'``, or of minus the share of positions
    whose most probable value changed since the round began (``'changes'``). Equal scores: the earlier model's.

    A sequence ends in the round in which a trajectory is filled, which then has no masked position to score. Where
    several are, as is the rule with decoders of a fixed number of positions, ours is this: the one whose values the
    models thought likeliest when the round began (mean probability over models and positions masked then, known at no
    further pass). The paper scores the positions of the answer in a text; here that is all of them.

    All passes count: of every model, and of the cross-scoring, whose output serves as the first step of the next round.
    With M models a full round costs ``M (steps - 1) + M * M`` passes, the first one M more.

    Args:
        models: two or more; each has as many values as the others and the same tokens.
        decoders: one for all, or one for each model (with heads of their own, say). A decoder's memory is handed on
            with the trajectory, where all decoders have one of that name.
        seed, temperature, sequence_ids, batch_size: as of :func:`maskmi.decoding.decode`; ``seed`` holds for the first
            model, the others draw values of their own.

    Returns:
        ``steps`` counts the steps of a trajectory, ``passes`` those of all models. No trace is kept.

    Raises:
        ValueError: for fewer than two models, models that don't fit together, or arguments out of range.
    """
    start = time.perf_counter()
    models = list(models)
    decoders = [decoders] * len(models) if callable(decoders) else list(decoders)
    if len(models) < 2:
        raise ValueError(f"an ensemble needs at least 2 models, not {len(models)}")
    if len(decoders) != len(models):
        raise ValueError(f"there must be one decoder, or one for each of the {len(models)} models, not {len(decoders)}")
    if len({model.values for model in models}) > 1:
        own = ", ".join("".join(model.values) for model in models)
        raise ValueError(f"the models must have the same values, not {own}")
    if len({model.device for model in models}) > 1:
        raise ValueError("the models must be on one device")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, not {steps}")
    if score not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}, not {score!r}")
    ids = checked_ids(tokens, sequence_ids, temperature, batch_size)
    device = models[0].device
    seeds = [seed] + [int(random_bits(seed, torch.tensor(DRAW), m)) & (2**63 - 1) for m in range(1, len(models))]
    run = _Ensemble(models, decoders, seeds, steps, score, temperature, batch_size)
    parts = [
        run.decode(part, own.to(device, torch.int64))
        for part, own in zip(tokens.to(device, torch.int64).split(batch_size), ids.split(batch_size), strict=True)
    ]
    done, passes, matrix_passes, taken, calls = zip(*parts, strict=True)
    return Decoded(
        tokens=torch.cat(done).cpu(),
        passes=torch.cat(passes).cpu(),
        matrix_passes=torch.cat(matrix_passes).cpu(),
        steps=torch.cat(taken).cpu(),
        batched_calls=sum(calls),
        seconds=time.perf_counter() - start,
    )


@dataclass
class _Trajectory:
    """One model's state of the active sequences."""

    tokens: Tensor  # [B, L]
    visits: Tensor  # [B, L], how often a position was masked again
    memory: dict[str, Tensor]


@dataclass
class _Ensemble:
    models: list
    decoders: list
    seeds: list[int]
    round_steps: int
    score: str
    temperature: float
    batch_size: int

    def decode(self, tokens: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """One batch: tokens, passes, passes of matrices, steps, calls."""
        self.final, self.ids = tokens.clone(), ids
        self.mask, self.pad = mask_token(self.models[0]), pad_token(self.models[0])
        self.given = tokens != self.mask
        self.taken, self.matrix_passes, passes = (torch.zeros_like(ids) for _ in range(3))
        self.networks = [Network(model, self.batch_size, passes) for model in self.models]
        active = (~self.given).any(1).nonzero().squeeze(1)
        current = tokens[active]
        trajectories = [_Trajectory(current, torch.zeros_like(current), {}) for _ in self.models]
        outputs = [self._evaluate(m, active, current) for m in range(len(self.models))] if len(active) else []
        while len(active):
            active, trajectories, outputs = self._round(active, trajectories, outputs)
        return self.final, passes, self.matrix_passes, self.taken, sum(network.calls for network in self.networks)

    def _evaluate(self, m: int, active: Tensor, tokens: Tensor) -> Output:
        decoder = self.decoders[m]
        source = getattr(decoder, "pairwise", None)
        attention = getattr(decoder, "needs_attention", False) or getattr(source, "needs_attention", False)
        return self.networks[m].evaluate(active, tokens, torch.arange(len(active), device=active.device), attention)

    def _round(self, active: Tensor, trajectories: list, outputs: list) -> tuple[Tensor, list, list]:
        """Some steps of every model from one common state; ``outputs`` are what the models say of it."""
        common = trajectories[0].tokens
        said = [distributions(output.logits, common == self.pad) for output in outputs]
        for step in range(self.round_steps):
            trajectories = [
                self._step(m, active, trajectory, outputs[m] if step == 0 else None)
                for m, trajectory in enumerate(trajectories)
            ]
            self.taken[active] += 1
            states = torch.stack([trajectory.tokens for trajectory in trajectories])  # [M, B, L]
            full = (states != self.mask).all(2)
            if full.any():  # the sequences for which one is filled leave, the others go on with the round
                ended = full.any(0)
                support = self._support(said, common, states).masked_fill(~full, -torch.inf)
                best = support.argmax(0)
                rows = torch.arange(len(active), device=active.device)
                self.final[active[ended]] = states[best, rows][ended]
                active, common, trajectories = self._keep(~ended, active, common, trajectories)
                outputs = [_select(output, ~ended) for output in outputs]
                said = [{name: part[~ended] for name, part in each.items()} for each in said]
                if not len(active):
                    return active, trajectories, outputs
        return active, *self._relay(active, said, trajectories)

    def _step(self, m: int, active: Tensor, trajectory: _Trajectory, output: Output | None) -> _Trajectory:
        rows = Rows(
            active,
            trajectory.tokens,
            self.given[active],
            self.taken[active],
            self.ids[active],
            trajectory.visits,
            trajectory.memory,
        )
        step = take_step(
            self.networks[m],
            self.decoders[m],
            rows,
            seed=self.seeds[m],
            temperature=self.temperature,
            last_remask=4 * trajectory.tokens.shape[1],  # as in decode: so that it ends
            output=output,
        )
        self.matrix_passes[active] += step.matrix_passes
        return _Trajectory(step.tokens, trajectory.visits + step.decision.remask, step.view.memory)

    def _support(self, said: list[dict[str, Tensor]], common: Tensor, states: Tensor) -> Tensor:
        """``[M, B]``: mean probability that the models gave, at the start of the round, to a trajectory's values."""
        blank = common == self.mask
        values = states.masked_fill(~blank | (states == self.mask), 0)
        p = sum(
            torch.stack([each["log_probs"].gather(2, v[:, :, None]).squeeze(2).exp() for v in values]) for each in said
        )
        return (p.double() * blank).sum(2) / blank.sum(1) / len(said)

    def _relay(self, active: Tensor, said: list[dict[str, Tensor]], trajectories: list) -> tuple[list, list]:
        """Score all trajectories by all models; every model goes on from the best, with its own output for it."""
        rows = torch.arange(len(active), device=active.device)
        crossed = [[self._evaluate(m, active, each.tokens) for each in trajectories] for m in range(len(self.models))]
        scores = []
        for t, trajectory in enumerate(trajectories):
            blank = trajectory.tokens == self.mask
            by_model = [
                self._score(said[m], distributions(crossed[m][t].logits, trajectory.tokens == self.pad))
                for m in range(len(self.models))
            ]
            scores.append((sum(by_model) * blank).sum(1) / blank.sum(1))
        best = torch.stack(scores).argmax(0)
        tokens = torch.stack([each.tokens for each in trajectories])[best, rows]
        visits = torch.stack([each.visits for each in trajectories])[best, rows]
        shared = set.intersection(*(set(each.memory) for each in trajectories))
        memory = {name: torch.stack([each.memory[name] for each in trajectories])[best, rows] for name in shared}
        outputs = []
        for row in crossed:
            parts = (None if part[0] is None else torch.stack(part)[best, rows] for part in zip(*row, strict=True))
            outputs.append(Output(*parts))
        copies = [{name: part.clone() for name, part in memory.items()} for _ in trajectories]
        return [_Trajectory(tokens, visits, copy) for copy in copies], outputs

    def _score(self, before: dict[str, Tensor], now: dict[str, Tensor]) -> Tensor:
        """``[B, L]`` float64, the larger the more reliable."""
        if self.score == "changes":
            return -(before["log_probs"].argmax(2) != now["log_probs"].argmax(2)).double()
        return -now["entropy"].double() if self.score == "entropy" else now[self.score].double()

    @staticmethod
    def _keep(kept: Tensor, active: Tensor, common: Tensor, trajectories: list) -> tuple[Tensor, Tensor, list]:
        left = [
            _Trajectory(each.tokens[kept], each.visits[kept], {name: part[kept] for name, part in each.memory.items()})
            for each in trajectories
        ]
        return active[kept], common[kept], left


def _select(output: Output, kept: Tensor) -> Output:
    return Output(*(None if part is None else part[kept] for part in output))
