"""One step of decoding: the network's output, what a decoder sees of it, its decision, and what that leaves."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from maskmi.decoding.state import VALUES, Decision, View
from maskmi.model import MaskedModel, Output, entropy, log_probabilities, mask_token, pad_token
from maskmi.noise import gumbel

# Matrix products of very few rows go through other kernels, whose bfloat16 rounding differs: a sequence decoded alone
# would differ from the same one in a batch. Calls are filled up to this many rows; on the processors tried, 5 did.
SMALLEST_BATCH = 8
GREEDY_BELOW = 1e-6  # temperatures up to this are greedy: dividing by them would overflow


def checked_ids(tokens: Tensor, sequence_ids: Tensor | None, temperature: float, batch_size: int) -> Tensor:
    """The ids int64 [N] that key the noise of ``tokens [N, L]``, by default 0 … N-1, after checking the arguments.

    Raises:
        ValueError: for arguments out of range.
    """
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be finite and 0 or more (0 is greedy), not {temperature}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    if tokens.dim() != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ValueError(f"tokens must be integers [N, L], not {tokens.dtype} {list(tokens.shape)}")
    count = len(tokens)
    ids = torch.arange(count) if sequence_ids is None else torch.as_tensor(sequence_ids)
    if ids.shape != (count,):
        raise ValueError(f"sequence_ids must have one entry for each of the {count} sequences, not {list(ids.shape)}")
    return ids.long()


@dataclass
class Network:
    """Runs a model in chunks and counts the passes of each sequence."""

    model: MaskedModel
    batch_size: int
    passes: Tensor  # [N], for all sequences
    calls: int = 0

    def evaluate(
        self, active: Tensor, tokens: Tensor, rows: Tensor, attention: bool = False, model: MaskedModel | None = None
    ) -> Output:
        """Evaluate ``tokens [R, L]``, charged to the sequences ``active[rows]``; see :class:`.state.Evaluate`."""
        model = model or self.model
        count, length = tokens.shape
        if not count:  # a decoder that had nothing to look at in this step
            sizes = (len(model.values), model.hidden_size)
            return Output(*(torch.empty(0, length, size, device=tokens.device) for size in sizes))
        self.passes.index_add_(0, active[rows], torch.ones_like(rows))
        parts = []
        for chunk in tokens.split(self.batch_size):
            filler = chunk[-1:].expand(max(0, SMALLEST_BATCH - len(chunk)), -1)
            output = model(torch.cat([chunk, filler]), attention=attention)
            parts.append([None if part is None else part[: len(chunk)] for part in output])
            self.calls += 1
        return Output(*(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)))


@dataclass
class Rows:
    """The sequences that take a step together."""

    active: Tensor  # [B] their numbers among all
    tokens: Tensor  # [B, L]
    given: Tensor  # bool [B, L], visible from the start
    step: Tensor  # [B] int64, steps taken before
    ids: Tensor  # [B] int64, keys of the noise
    visits: Tensor  # [B, L], how often a position was masked again: a fresh visit draws fresh noise
    memory: dict[str, Tensor]  # of the decoder


@dataclass
class Step:
    """What came of a step."""

    view: View
    decision: Decision  # complete: every field but ``spent`` is there
    tokens: Tensor  # [B, L], after it
    matrix_passes: Tensor | int  # [B]


def take_step(
    network: Network,
    decoder: Callable[[View], Decision],
    rows: Rows,
    *,
    seed: int,
    temperature: float,
    last_remask: int,
    output: Output | None = None,
) -> Step:
    """Evaluate the network, unless its ``output`` is known already, and do what the decoder says.

    Args:
        last_remask: steps of a sequence after which masking again is ignored.

    Raises:
        ValueError: where the decoder or its pairwise source breaks the rules, see :func:`maskmi.decoding.decode`.
    """
    model, tokens = network.model, rows.tokens
    evaluate, source = partial(network.evaluate, rows.active), getattr(decoder, "pairwise", None)
    if output is None:
        attention = getattr(decoder, "needs_attention", False) or getattr(source, "needs_attention", False)
        output = evaluate(tokens, torch.arange(len(tokens), device=tokens.device), attention)
    view = View(
        **distributions(output.logits, tokens == pad_token(model)),
        tokens=tokens,
        masked=tokens == mask_token(model),
        given=rows.given,
        step=rows.step,
        output=output,
        ids=rows.ids,
        seed=seed,
        mask=mask_token(model),
        memory=rows.memory,
        evaluate=evaluate,
    )
    view.proposal = _propose(view, temperature, rows.visits)
    view.proposal_log_prob = view.log_probs.gather(2, view.proposal[:, :, None]).squeeze(2)
    matrix_passes = 0
    if source is not None:
        view.pairwise, matrix_passes = source(model, view)
        if view.pairwise.shape != (*tokens.shape, tokens.shape[1]) or not torch.isfinite(view.pairwise.sum()):
            raise ValueError("the pairwise source must give finite numbers [B, L, L] for the active sequences")
    decision = _checked(decoder(view), view)
    decision.remask = decision.remask & (view.step < last_remask)[:, None]
    after = torch.where(decision.commit, decision.values, tokens).masked_fill(decision.remask, view.mask)
    return Step(view, decision, after, matrix_passes)


def distributions(logits: Tensor, padding: Tensor) -> dict[str, Tensor]:
    """``log_probs``, ``entropy``, ``confidence`` and ``margin`` of logits [B, L, V], as a :class:`View` has them."""
    # What a model says of padding is meaningless and may not even be finite.
    log_probs = log_probabilities(logits.masked_fill(padding[:, :, None], 0))
    top = log_probs.topk(min(2, log_probs.shape[-1]), dim=-1).values.exp()
    margin = top[..., 0] - top[..., 1] if top.shape[-1] == 2 else top[..., 0]
    return {"log_probs": log_probs, "entropy": entropy(log_probs), "confidence": top[..., 0], "margin": margin}


def _propose(view: View, temperature: float, visits: Tensor) -> Tensor:
    """The value ``[B, L]`` that a commitment would write at each position."""
    proposal = view.log_probs.argmax(-1)
    if temperature > GREEDY_BELOW:
        row, position = view.masked.nonzero(as_tuple=True)
        values = torch.arange(view.log_probs.shape[-1], device=proposal.device)
        key = (view.ids[row, None], position[:, None], visits[row, position, None], values)
        noisy = view.log_probs[row, position].double() / temperature + gumbel(view.seed, VALUES, *key)
        proposal[row, position] = noisy.argmax(-1)
    return proposal


def _checked(decision: Decision, view: View) -> Decision:
    """The decision with its defaults filled in and at least one commitment a sequence, after checking the rules."""
    masked = view.masked
    commit, values, remask = decision.commit, decision.values, decision.remask
    for name, tensor in (("commit", commit), ("values", values), ("remask", remask)):
        if tensor is not None and tensor.shape != masked.shape:
            raise ValueError(f"decoder: {name} must have shape {list(masked.shape)}, not {list(tensor.shape)}")
    if commit.dtype != torch.bool or (remask is not None and remask.dtype != torch.bool):
        raise ValueError("decoder: commit and remask must be boolean")
    if (commit & ~masked).any():
        raise ValueError("decoder: only masked positions may be committed; combine commit with view.masked")
    if remask is None:
        remask = torch.zeros_like(commit)
    elif (remask & (masked | view.given)).any():
        raise ValueError("decoder: only visible positions that aren't given may be masked again")
    if values is None:
        values = view.proposal
    elif (commit & ((values < 0) | (values >= view.log_probs.shape[-1]))).any():
        raise ValueError(f"decoder: committed values must lie in 0 … {view.log_probs.shape[-1] - 1}")
    for name, tensor in view.memory.items():
        if len(tensor) != len(masked):
            raise ValueError(f"decoder: memory {name!r} must have one row for each of the {len(masked)} sequences")
    idle = ~commit.any(1)
    if idle.any():
        surest = view.confidence.masked_fill(~masked, -torch.inf).argmax(1)
        forced = torch.zeros_like(commit).scatter_(1, surest[:, None], idle[:, None])
        commit, values = commit | forced, torch.where(forced, view.proposal, values)
    return Decision(commit, values, remask, decision.spent)
