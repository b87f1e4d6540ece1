"""The decoding loop: one network pass a step for all active sequences, then the decoder's decision.

Sequences end at different steps. One that ends leaves the batch and a waiting one takes its row, so the network always
sees a full batch and a finished sequence costs nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from tqdm import tqdm

from maskmi.decoding.state import Decision, View
from maskmi.decoding.step import Network, Rows, Step, checked_ids, take_step
from maskmi.model import MaskedModel, mask_token


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
class _Recorder:
    """Collects the rows of a trace."""

    keep_matrix: bool
    tables: dict = field(default_factory=lambda: {"commits": [], "remasks": [], "steps": []})

    def add(self, table: str, **columns: Tensor) -> None:
        self.tables[table].append({name: column.cpu() for name, column in columns.items()})

    def step(self, active: Tensor, step: Step) -> None:
        view, decision = step.view, step.decision
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
        row, position = decision.remask.nonzero(as_tuple=True)
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
    ids = checked_ids(tokens, sequence_ids, temperature, batch_size).to(model.device)
    device, mask = model.device, mask_token(model)
    state = tokens.to(device, torch.int64, copy=True)
    count, length = state.shape
    given = state != mask
    last_remask = 4 * length if max_steps is None else max_steps
    passes, matrix_passes, steps = (torch.zeros(count, dtype=torch.int64, device=device) for _ in range(3))
    visits = torch.zeros_like(state)  # how often a position was masked again: a fresh visit draws fresh noise
    recorder = _Recorder(keep_matrix) if keep_trace or keep_matrix else None
    network = Network(model, batch_size, passes)

    waiting = (~given).any(1).nonzero().squeeze(1)
    active, memory = waiting[:0], {}
    bar = tqdm(total=count, initial=count - len(waiting), disable=not progress, unit="sequence", mininterval=1)
    while len(active) or len(waiting):
        room = batch_size - len(active)
        if room and len(waiting):
            entering, waiting = waiting[:room], waiting[room:]
            active = torch.cat([active, entering])
            memory = {k: torch.cat([m, m.new_zeros(len(entering), *m.shape[1:])]) for k, m in memory.items()}

        rows = Rows(active, state[active], given[active], steps[active], ids[active], visits[active], memory)
        step = take_step(network, decoder, rows, seed=seed, temperature=temperature, last_remask=last_remask)
        if recorder:
            recorder.step(active, step)
        current = step.tokens
        state[active] = current
        visits[active] += step.decision.remask
        matrix_passes[active] += step.matrix_passes
        steps[active] += 1
        memory = step.view.memory
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
