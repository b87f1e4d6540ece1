"""The decoding loop: one network pass a step for all active sequences, then the decoder's decision.

Sequences end at different steps. One that ends leaves the batch and a waiting one takes its row, so the network always
sees a full batch and a finished sequence costs nothing.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from tqdm import tqdm

from maskmi.decoding.state import VALUES, Decision, View
from maskmi.model import MaskedModel, Output, entropy, log_probabilities, mask_token, pad_token
from maskmi.noise import gumbel

# Matrix products of very few rows go through other kernels, whose bfloat16 rounding differs: a sequence decoded alone
# would differ from the same one in a batch. Calls are filled up to this many rows; on the processors tried, 5 did.
SMALLEST_BATCH = 8
GREEDY_BELOW = 1e-6  # temperatures up to this are greedy: dividing by them would overflow


@dataclass
class Trace:
    """What happened, as columns (dictionaries of equally long CPU tensors), in the order in which it happened.

    ``sequence`` is the row in the decoded tokens, ``step`` counts from 0 for each sequence.
    """

    commits: dict[str, Tensor]  # sequence, step, position, value, entropy, confidence, log_prob (all untempered)
    remasks: dict[str, Tensor]  # sequence, step, position
    steps: dict[str, Tensor]  # sequence, step, spent (NaN unless the decoder reports it), perhaps matrix [·, L, L]

    def first(self, count: int) -> "Trace":
        """The trace of the first ``count`` sequences alone."""
        tables = (self.commits, self.remasks, self.steps)
        return Trace(*({k: v[table["sequence"] < count] for k, v in table.items()} for table in tables))


@dataclass
class Decoded:
    """The result of :func:`decode` for ``N`` sequences, on the CPU."""

    tokens: Tensor  # [N, L] int64, nothing masked
    passes: Tensor  # [N] int64, network evaluations spent on each sequence, a probed matrix' own apart
    matrix_passes: Tensor  # [N] int64, passes spent by the pairwise source
    steps: Tensor  # [N] int64
    batched_calls: int  # calls of the network, of whatever batch; those of the pairwise source not counted
    seconds: float  # wall time of the whole call
    trace: Trace | None = None


@dataclass
class _Network:
    """Runs the network in chunks and counts."""

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
class _Recorder:
    """Collects the rows of a trace."""

    keep_matrix: bool
    tables: dict = field(default_factory=lambda: {"commits": [], "remasks": [], "steps": []})

    def add(self, table: str, **columns: Tensor) -> None:
        self.tables[table].append({name: column.cpu() for name, column in columns.items()})

    def step(self, active: Tensor, view: View, decision: Decision, remask: Tensor) -> None:
        row, position = decision.commit.nonzero(as_tuple=True)
        value = decision.values[row, position]
        self.add(
            "commits",
            sequence=active[row],
            step=view.step[row],
            position=position,
            value=value,
            entropy=view.entropy[row, position],
            confidence=view.confidence[row, position],
            log_prob=view.log_probs[row, position, value],
        )
        row, position = remask.nonzero(as_tuple=True)
        self.add("remasks", sequence=active[row], step=view.step[row], position=position)
        spent = decision.spent if decision.spent is not None else torch.full(active.shape, torch.nan)
        matrix = {"matrix": view.pairwise} if self.keep_matrix and view.pairwise is not None else {}
        self.add("steps", sequence=active, step=view.step, spent=spent, **matrix)

    def trace(self) -> Trace:
        columns = {
            "commits": ("sequence", "step", "position", "value", "entropy", "confidence", "log_prob"),
            "remasks": ("sequence", "step", "position"),
            "steps": ("sequence", "step", "spent"),
        }
        joined = {}
        for table, parts in self.tables.items():
            names = parts[0].keys() if parts else columns[table]
            joined[table] = {n: torch.cat([part[n] for part in parts]) if parts else torch.empty(0) for n in names}
        return Trace(**joined)


@torch.no_grad()
def decode(
    model: MaskedModel,
    tokens: Tensor,
    decoder: Callable[[View], Decision],
    *,
    seed: int = 0,
    temperature: float = 0.0,
    sequence_ids: Tensor | None = None,
    batch_size: int = 256,
    max_steps: int | None = None,
    keep_trace: bool = False,
    keep_matrix: bool = False,
    progress: bool = False,
) -> Decoded:
    """Fill in every MASK of ``tokens [N, L]``; what is visible is never changed.

    Each sequence is decoded as if alone: noise is keyed by ``seed`` and its id, ties go to the lower position, and
    sequences share nothing but the network's batch. The result is the same in every batch and order as far as the
    network's output for a sequence is (a GPU may round matrix products of other shapes differently).

    Args:
        decoder: says what to commit, see :mod:`maskmi.decoding.state`. Where it commits nothing in a sequence, the
            most confident masked position is committed for it, so that decoding always ends.
        temperature: of the values only: they are drawn from ``softmax(logits / temperature)``, while what orders
            positions is untempered. Up to 1e-6, the default, the most probable value is taken. The draw at a position
            stays the same from step to step until the position is masked again.
        sequence_ids: ``[N]`` integers that key the noise, ``0 … N-1`` unless given.
        batch_size: most rows of one network call.
        max_steps: steps of a sequence after which masking again is ignored (default ``4 L``), so that a decoder that
            masks again ends too, at the latest ``L`` steps later. Other decoders never take more than ``L`` steps.
        keep_trace: keep every commitment; with ``keep_matrix`` also the pairwise matrix of every step (large).
        progress: show a bar that counts finished sequences.

    Raises:
        ValueError: for arguments out of range, and where the decoder breaks the rules: commits a position that isn't
            masked, a value that isn't one, masks a given position again, or answers in another shape.
    """
    start = time.perf_counter()
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be finite and 0 or more (0 is greedy), not {temperature}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    if tokens.dim() != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ValueError(f"tokens must be integers [N, L], not {tokens.dtype} {list(tokens.shape)}")
    device, mask, pad = model.device, mask_token(model), pad_token(model)
    state = tokens.to(device, torch.int64, copy=True)
    count, length = state.shape
    ids = torch.arange(count) if sequence_ids is None else torch.as_tensor(sequence_ids)
    if ids.shape != (count,):
        raise ValueError(f"sequence_ids must have one entry for each of the {count} sequences, not {list(ids.shape)}")
    ids = ids.to(device, torch.int64)
    given = state != mask
    last_remask = 4 * length if max_steps is None else max_steps
    passes, matrix_passes, steps = (torch.zeros(count, dtype=torch.int64, device=device) for _ in range(3))
    visits = torch.zeros_like(state)  # how often a position was masked again: a fresh visit draws fresh noise
    source = getattr(decoder, "pairwise", None)
    attention = getattr(decoder, "needs_attention", False) or getattr(source, "needs_attention", False)
    recorder = _Recorder(keep_matrix) if keep_trace or keep_matrix else None
    network = _Network(model, batch_size, passes)

    waiting = (~given).any(1).nonzero().squeeze(1)
    active, memory = waiting[:0], {}
    bar = tqdm(total=count, initial=count - len(waiting), disable=not progress, unit="sequence", mininterval=1)
    while len(active) or len(waiting):
        room = batch_size - len(active)
        if room and len(waiting):
            entering, waiting = waiting[:room], waiting[room:]
            active = torch.cat([active, entering])
            memory = {k: torch.cat([m, m.new_zeros(len(entering), *m.shape[1:])]) for k, m in memory.items()}

        current = state[active]
        evaluate = partial(network.evaluate, active)
        output = evaluate(current, torch.arange(len(active), device=device), attention)
        view = View(
            **_distributions(output.logits, current == pad),
            tokens=current,
            masked=current == mask,
            given=given[active],
            step=steps[active],
            output=output,
            ids=ids[active],
            seed=seed,
            mask=mask,
            memory=memory,
            evaluate=evaluate,
        )
        view.proposal = _propose(view, temperature, visits[active])
        view.proposal_log_prob = view.log_probs.gather(2, view.proposal[:, :, None]).squeeze(2)
        if source is not None:
            view.pairwise, extra = source(model, view)
            if view.pairwise.shape != (*current.shape, length) or not torch.isfinite(view.pairwise.sum()):
                raise ValueError("the pairwise source must give finite numbers [B, L, L] for the active sequences")
            matrix_passes[active] += extra
        decision = _checked(decoder(view), view)
        remask = decision.remask & (view.step < last_remask)[:, None]
        if recorder:
            recorder.step(active, view, decision, remask)

        current = torch.where(decision.commit, decision.values, current).masked_fill(remask, mask)
        state[active] = current
        visits[active] += remask
        steps[active] += 1
        memory = view.memory
        unfinished = (current == mask).any(1)
        if not unfinished.all():
            bar.update(int((~unfinished).sum()))
            active = active[unfinished]
            memory = {name: tensor[unfinished] for name, tensor in memory.items()}
    bar.close()
    return Decoded(
        tokens=state.cpu(),
        passes=passes.cpu(),
        matrix_passes=matrix_passes.cpu(),
        steps=steps.cpu(),
        batched_calls=network.calls,
        seconds=time.perf_counter() - start,
        trace=recorder.trace() if recorder else None,
    )


def _distributions(logits: Tensor, padding: Tensor) -> dict[str, Tensor]:
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
