"""Runs a masked model's batch in pieces on worker threads, one compute thread each.

On a CPU this beats one call on all cores: a piece's activations stay in its core's cache, and no layer waits for the
slowest thread. The numbers are the same, for no operation mixes sequences.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from maskmi.model import MaskedModel, Output

# Matrix products of fewer rows round otherwise in bfloat16, so that a result would depend on the size of its batch.
SMALLEST_PIECE = 8
WORKERS = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
_pool: ThreadPoolExecutor | None = None


def threaded_map(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
    """``[function(piece) for piece in pieces]`` on the worker threads, without gradients, in order."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,))

    def call(piece: Any) -> Any:
        with torch.no_grad():  # a thread's own setting
            return function(piece)

    return list(_pool.map(call, pieces))


class InThreads:
    """A masked model on the CPU that evaluates its batches in pieces of at most ``piece`` sequences, in parallel.

    For inference only: no gradients. On another device than the CPU it calls the model as it is.

    Args:
        compiled: let ``torch.compile`` fuse the model's operations, for half a minute at the first call and about a
            third less time after it. Pieces then have exactly ``piece`` sequences, the last one filled up; calls that
            ask for the attention run as usual. Rounding differs slightly from that of the model as it is.

    Raises:
        ValueError: if ``piece`` is too small.
        RuntimeError: if ``compiled`` and there is no C++ compiler.
    """

    def __init__(self, model: MaskedModel, piece: int = 32, compiled: bool = False):
        if piece < SMALLEST_PIECE:
            raise ValueError(f"piece must be at least {SMALLEST_PIECE} sequences, not {piece}")
        if compiled and not any(map(shutil.which, ("g++", "clang++", "c++"))):
            raise RuntimeError("compiling the model needs a C++ compiler: install g++, or set compiled=False")
        self.model, self.piece = model, piece
        self.values, self.hidden_size = model.values, model.hidden_size
        self._fused: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        self.compiled = compiled

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(self, tokens: Tensor, attention: bool = False) -> Output:
        """As the model itself; see :class:`maskmi.model.MaskedModel`."""
        if self.compiled and not attention and self.device.type == "cpu" and len(tokens):
            return self._evaluate_compiled(tokens)
        size = min(self.piece, max(SMALLEST_PIECE, -(-len(tokens) // WORKERS)))
        if self.device.type != "cpu" or len(tokens) <= size:
            with torch.no_grad():
                return self.model(tokens, attention)
        pieces = list(tokens.split(size))
        if len(pieces[-1]) < SMALLEST_PIECE:  # joins the piece before it
            pieces[-2:] = [torch.cat(pieces[-2:])]
        outputs = threaded_map(lambda part: self.model(part, attention), pieces)
        return Output(*(None if column[0] is None else torch.cat(column) for column in zip(*outputs, strict=True)))

    def _evaluate_compiled(self, tokens: Tensor) -> Output:
        filler = tokens[-1:].expand(-len(tokens) % self.piece, -1)
        pieces = torch.cat([tokens, filler]).split(self.piece)
        if self._fused is None:  # by one thread, before the others need it
            self._fused = torch.compile(lambda t: tuple(self.model(t)[:2]), dynamic=False, options={"freezing": True})
            threaded_map(self._fused, pieces[:1])
        parts = zip(*threaded_map(self._fused, pieces), strict=True)
        return Output(*(torch.cat(part)[: len(tokens)] for part in parts), None)
