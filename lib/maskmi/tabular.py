"""A masked model read off an explicit joint table, for which everything the library estimates is known exactly.

With ``L`` positions and ``V`` values the table has ``V**L`` entries, so conditionals, mutual information and the error
of a parallel step are plain sums. All of it is float64 and in nats. Sequences have one length: there is no padding.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from maskmi.model import Output, entropy_of

LOWEST_LOG = -20.0  # stands for log 0 in the hidden states, which must stay finite


class TabularModel:
    """The exact conditionals of ``joint``, a float64 tensor of ``L`` axes of ``V`` entries that sum to one.

    A ``MaskedModel``: logits are the log conditionals ``log P(X_i = v | visible tokens)``, ``-inf`` where impossible;
    the hidden state of a position is its one-hot position followed by the log conditionals of all positions.

    Raises:
        ValueError: unless the table is square in every axis (2 to 9 values), not negative, and normalised.
    """

    def __init__(self, joint: Tensor):
        joint = torch.as_tensor(joint)
        if joint.dtype != torch.float64:
            raise ValueError(f"the joint table must be float64, not {joint.dtype}: exactness is its purpose")
        if joint.ndim < 1 or len(set(joint.shape)) != 1 or not 2 <= joint.shape[0] <= 9:
            raise ValueError(f"the joint table needs one axis of the same 2 to 9 values a position, not {joint.shape}")
        if not (joint >= 0).all() or not torch.isfinite(joint).all():
            raise ValueError("the joint table holds a negative, NaN or infinite entry: give probabilities")
        if abs(joint.sum().item() - 1) > 1e-9:
            raise ValueError(f"the joint table sums to {joint.sum().item():.6g}: divide it by its sum")
        self.joint = joint
        self.length, self.value_count = joint.ndim, joint.shape[0]
        self.values = "123456789"[: self.value_count]
        self.hidden_size = self.length * (self.value_count + 1)
        self.device = torch.device("cpu")
        self._p = joint.flatten()  # [S], S = V**L states
        self._states = torch.cartesian_prod(*[torch.arange(self.value_count)] * self.length).reshape(-1, self.length)
        self._one_hot = torch.nn.functional.one_hot(self._states, self.value_count).double().flatten(1)  # [S, L*V]

    @classmethod
    def independent(cls, marginals: Tensor) -> "TabularModel":
        """Positions that know nothing of one another, with the given marginals ``[L, V]``."""
        joint = torch.ones((), dtype=torch.float64)
        for marginal in torch.as_tensor(marginals, dtype=torch.float64):
            joint = joint[..., None] * marginal
        return cls(joint)

    @classmethod
    def random(cls, seed: int, length: int, values: int, concentration: float = 0.5) -> "TabularModel":
        """A table drawn from a symmetric Dirichlet distribution; a small concentration gives strong dependence."""
        p = np.random.default_rng(seed).dirichlet(np.full(values**length, concentration))
        return cls(torch.from_numpy(p).reshape([values] * length))

    @classmethod
    def chain(cls, length: int, values: int, copy: float = 0.9) -> "TabularModel":
        """A uniform first value; each next one repeats it with probability ``copy``, else is any other value."""
        step = torch.full((values, values), (1 - copy) / (values - 1), dtype=torch.float64).fill_diagonal_(copy)
        joint = torch.full((values,), 1 / values, dtype=torch.float64)
        for _ in range(length - 1):
            joint = joint[..., None] * step
        return cls(joint)

    @classmethod
    def parity(cls, length: int) -> "TabularModel":
        """Fair bits of even sum: any ``length - 1`` are independent, the last one is decided by the others."""
        total = sum(torch.arange(2).reshape([2 if a == i else 1 for a in range(length)]) for i in range(length))
        return cls((total % 2 == 0).double() / 2 ** (length - 1))

    def __call__(self, tokens: Tensor, attention: bool = False) -> Output:
        """Logits ``[B, L, V]`` (float64) and hidden states ``[B, L, L + L*V]`` (float32) for ``tokens [B, L]``."""
        if attention:
            raise ValueError("a tabular model has no attention maps")
        restricted = self._restricted(tokens)
        marginals = (restricted @ self._one_hot).unflatten(-1, (self.length, self.value_count))
        logits = (marginals / restricted.sum(-1)[:, None, None]).log()
        position = torch.eye(self.length).expand(len(tokens), -1, -1)
        features = logits.clamp_min(LOWEST_LOG).float().flatten(1)[:, None, :].expand(-1, self.length, -1)
        return Output(logits, torch.cat([position, features], dim=-1))

    def conditional(self, context: Tensor) -> Tensor:
        """``P(X_i = v | context)`` as ``[L, V]``; a visible position has all its mass on its own value."""
        return self(context[None]).logits[0].exp()

    def pairwise_mi(self, context: Tensor) -> Tensor:
        """Exact ``I(X_i; X_j | context)`` as ``[L, L]``, zero on the diagonal and at visible positions."""
        restricted = self._restricted(context[None])[0]
        pairs = self._one_hot.T @ (restricted[:, None] * self._one_hot) / restricted.sum()
        pairs = pairs.reshape(self.length, self.value_count, self.length, self.value_count).transpose(1, 2)
        h = entropy_of(self.conditional(context))
        mi = (h[:, None] + h[None, :] - entropy_of(pairs.flatten(2))).clamp_min(0)
        return mi.fill_diagonal_(0)

    def joint_of(self, context: Tensor, positions: Sequence[int] | None = None) -> Tensor:
        """``P(X_positions | context)``, one axis of ``V`` a position in rising order (default: the masked ones)."""
        if positions is None:
            positions = (context == self.value_count).nonzero().flatten().tolist()
        restricted = self._restricted(context[None])[0]
        others = [i for i in range(self.length) if i not in set(positions)]
        table = (restricted / restricted.sum()).reshape(self.joint.shape)
        return table.sum(others) if others else table

    def probability(self, sequences: Tensor) -> Tensor:
        """Probability of complete sequences ``[..., L]``."""
        if sequences.shape[-1] != self.length or (sequences < 0).any() or (sequences >= self.value_count).any():
            raise ValueError(f"complete sequences of {self.length} values below {self.value_count} are needed")
        return self.joint[sequences.unbind(-1)]

    def joint_error(self, context: Tensor, positions: Sequence[int], values: Sequence[int]) -> float:
        """Error of committing ``values`` at ``positions`` at once: ``Σ log P(x_j | C) − log P(all x_j | C)``.

        By the chain rule this is the sum over the members, in any order, of ``log P(x_j | C) − log P(x_j | C, earlier
        members)``: the dependency that the step ignored. ``inf`` when each value is possible but all together are not.
        """
        order = sorted(range(len(positions)), key=lambda k: positions[k])
        alone = self.conditional(context)[list(positions), list(values)]
        if (alone == 0).any():
            raise ValueError("a committed value is impossible in this context even alone")
        together = self.joint_of(context, positions)[tuple(values[k] for k in order)]
        return (alone.log().sum() - together.log()).item()

    def total_correlation(self, context: Tensor, positions: Sequence[int]) -> float:
        """``KL(P(X_positions | C) ‖ Π P(X_j | C))``: minus the mean joint error when values follow the true joint."""
        together = entropy_of(self.joint_of(context, positions).flatten())
        return max(0.0, (entropy_of(self.conditional(context)[list(positions)]).sum() - together).item())

    def _restricted(self, tokens: Tensor) -> Tensor:
        """The table with every state that contradicts the visible tokens set to zero: ``[B, S]``."""
        if tokens.ndim != 2 or tokens.shape[1] != self.length:
            raise ValueError(f"tokens must be [B, {self.length}], not {list(tokens.shape)}")
        if (tokens < 0).any() or (tokens > self.value_count).any():
            raise ValueError(f"tokens must be values below {self.value_count} or MASK: a table has no padding")
        possible = ((tokens[:, None] == self.value_count) | (tokens[:, None] == self._states)).all(-1)
        restricted = torch.where(possible, self._p, 0.0)
        impossible = (restricted.sum(-1) == 0).nonzero().flatten().tolist()
        if impossible:
            context = tokens[impossible[0]].tolist()
            raise ValueError(f"context {context} (row {impossible[0]}) has probability zero: nothing follows from it")
        return restricted
