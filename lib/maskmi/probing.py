"""Pairwise mutual information by conditional probing: set one masked position to each of its values, read all others.

With ``p_i`` the model's distribution at masked position ``i`` and ``q_{j,i=v}`` the one at ``j`` in the pass where
``i`` is set to ``v``, one table of passes gives, in nats, for a directed pair ``i → j``:

- the paper's estimator ``H_j − Σ_v p_i(v) H(q_{j,i=v})``, slightly negative where the model contradicts itself;
- the mixture estimator ``H(Σ_v p_i(v) q_{j,i=v}) − Σ_v p_i(v) H(q_{j,i=v})``, a Jensen-Shannon divergence, thus
  never negative;
- total-variation influence ``Σ_v p_i(v) TV(q_{j,i=v}, p_j)`` (DEMASK, arXiv 2604.02560);
- the inconsistency ``KL(Σ_v p_i(v) q_{j,i=v} ‖ p_j)``, which is zero where both estimators agree;
- the categorical Jacobian (see ``probe``).

For a model whose conditionals come from one joint distribution both estimators are the exact ``I(X_i; X_j | C)``.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from maskmi.model import MaskedModel, entropy, entropy_of, kl_divergence, log_probabilities, mask_token, pad_token

GROUP_BYTES = (
    64 * 2**20
)  # accumulators of the contexts in work at a time; the temporaries at their end are some times that
LOWEST_LOG = math.log(torch.finfo(torch.float32).tiny)  # log-probabilities are floored here in the Jacobian alone
MATRICES = ("entropy_drop", "mixture", "tv", "inconsistency", "jacobian")


@dataclass(frozen=True)
class Probes:
    """What probing ``B`` contexts of length ``L`` found, in nats.

    Matrices are ``[B, L, L]``, indexed by the position that was set, then by the one that was read, and zero unless the
    first was probed, the second is masked, and they differ. Only ``jacobian`` is symmetric.
    """

    entropy_drop: Tensor | None  # the paper's estimator
    mixture: Tensor | None
    tv: Tensor | None
    inconsistency: Tensor | None  # inf where the mixture allows a value that p_j excludes
    probed: Tensor  # bool [B, L]
    masked: Tensor  # bool [B, L]
    entropy: Tensor  # [B, L], zero where visible
    passes: Tensor  # int64 [B]: 1 + rows of this context that went through the network; 0 when nothing is masked
    skipped_mass: Tensor  # [B, L], δ_i
    error_bound: Tensor  # [B, L], δ_i log V
    jacobian: Tensor | None = None

    @property
    def defined(self) -> Tensor:
        """Directed pairs ``[B, L, L]`` that were measured."""
        off_diagonal = ~torch.eye(self.masked.shape[1], dtype=torch.bool, device=self.masked.device)
        return self.probed[:, :, None] & self.masked[:, None, :] & off_diagonal


@torch.no_grad()
def probe(
    model: MaskedModel,
    tokens: Tensor,
    *,
    rows: Tensor | None = None,
    tolerance: float = 0.0,
    batch_size: int = 1024,
    jacobian: bool = False,
    progress: bool = False,
) -> Probes:
    """Probe contexts ``tokens [B, L]``; results are float32 (float64 for float64 logits), on the device of ``tokens``.

    A row is one context with one masked position set to one value. Values of probability zero contribute nothing and
    cost no pass; neither does a position that is masked alone: it has no partner. Rows of contexts share batches.

    **Pruning.** With ``tolerance > 0`` the least probable values of position ``i`` are skipped while their total
    probability ``δ_i`` keeps ``δ_i log V ≤ tolerance``; for them ``p_j`` stands in for ``q_{j,i=v}``: a skipped value
    is taken to tell nothing. The entropy drop then differs from the unpruned one by ``|δ H_j − Σ_skipped p_i(v)
    H(q_{j,i=v})|``; both terms lie in ``[0, δ log V]``, so the error is at most ``δ_i log V``. The total-variation
    influence loses at most ``δ_i``. No such bound can hold for the mixture estimator, since skipped values may tell of
    themselves by their rarity (kept values all lead to *a*, skipped ones all to *b*: ``h(δ)`` nats, with h the binary
    entropy). Split by whether the value was kept, the mixture estimator is ``JSD_δ(m_kept, m_skipped) + (1−δ) I_kept +
    δ I_skipped`` with ``0 ≤ JSD_δ ≤ h(δ)`` and ``0 ≤ I_skipped ≤ log V``; the stand-in changes the first term and makes
    the last one zero, so the error is at most ``h(δ) + δ log V``. The inconsistency can only shrink, for KL is convex
    and zero for the stand-in, if nothing is skipped that alone makes it infinite.

    **Categorical Jacobian.** ``J[i,v,j,w]``, the change of the log-probability of ``w`` at ``j`` when ``i`` is set to
    ``v``; values with a logit of ``-inf`` are not set and count as no change, as does ``i = j``. It is centred on all
    four axes over the masked positions (which makes log-probabilities and logits alike), then Frobenius norm over
    ``v, w``, zero diagonal, average-product correction, mean of both directions.

    Args:
        rows: bool ``[B, L]``, the positions to probe (default: all that are masked; others are ignored).
        tolerance: bound in nats on the error of pruning; 0 gives the exact table.
        batch_size: rows per call of the model.
        jacobian: also the categorical Jacobian; needs the exact table of all masked positions.

    On a GPU the order of summation, thus the last digit, is fixed only under ``torch.use_deterministic_algorithms``.

    Raises:
        ValueError: for tokens that aren't contexts, bad options, or logits at a masked position that are no
            distribution.
    """
    masked, lengths = _read_contexts(model, tokens)
    if rows is not None and (rows.shape != tokens.shape or rows.dtype != torch.bool):
        raise ValueError(f"rows must be bool {list(tokens.shape)}, not {rows.dtype} {list(rows.shape)}")
    if not 0 <= tolerance < math.inf or batch_size < 1:
        raise ValueError("tolerance must be a finite number of nats from 0, batch_size at least 1")
    if jacobian and (tolerance > 0 or rows is not None):
        raise ValueError("the categorical Jacobian needs the exact table: leave out tolerance and rows")
    probed = masked if rows is None else masked & rows.to(masked.device)

    (count, length), value_count = tokens.shape, len(model.values)
    per_context = 8 * length * length * value_count * (value_count if jacobian else 1)
    groups = lengths.argsort(stable=True).split(max(1, GROUP_BYTES // max(1, per_context)))
    result: dict[str, Tensor] = {}
    # Contexts of like length share a group, which is cut to the longest: padding costs little.
    with tqdm(total=count, unit="context", disable=not progress) as bar:
        for group in groups:
            width = int(lengths[group].max()) if count else length
            piece = _probe_group(
                model,
                *(part[group, :width].to(model.device) for part in (tokens, masked, probed)),
                tolerance=tolerance,
                batch_size=batch_size,
                jacobian=jacobian,
            )
            for name, value in piece.items():
                shape = [count] + [length] * (value.ndim - 1)
                whole = result.setdefault(name, torch.zeros(shape, dtype=value.dtype, device=tokens.device))
                whole[(group, *[slice(width)] * (value.ndim - 1))] = value.to(tokens.device)
            bar.update(len(group))
    return Probes(probed=probed, masked=masked, **result)


def _read_contexts(model: MaskedModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Masked positions ``[B, L]`` and lengths without padding ``[B]``."""
    if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ValueError(f"tokens must be integers [B, L], not {tokens.dtype} {list(tokens.shape)}")
    if (tokens < 0).any():
        raise ValueError("tokens hold a negative number: they count from 0")
    real = tokens != pad_token(model)
    lengths = real.sum(1)
    if (real[:, 1:] & ~real[:, :-1]).any():
        raise ValueError("padding stands before a token: it may only follow the end of a sequence")
    return tokens == mask_token(model), lengths


def _probe_group(
    model: MaskedModel,
    tokens: Tensor,
    masked: Tensor,
    probed: Tensor,
    *,
    tolerance: float,
    batch_size: int,
    jacobian: bool,
) -> dict[str, Tensor]:
    """Probe contexts whose accumulators fit into memory together; see ``probe``."""
    count, length = tokens.shape
    value_count = len(model.values)
    tokens = tokens.long()

    active = masked.any(1)
    base = [_log_p(model, part, open_) for part, open_ in _parts(batch_size, tokens[active], masked[active])]
    log_p = torch.full((count, length, value_count), -math.log(value_count), device=tokens.device)
    if base:
        log_p = log_p.to(base[0].dtype)
        log_p[active] = torch.cat(base)
    p = log_p.exp()
    h = entropy(log_p).masked_fill(~masked, 0)

    # Which rows: all values that are possible, less the least probable ones within the tolerance.
    has_partner = probed & (masked.sum(1) > 1)[:, None]
    ascending, order = p.sort(dim=-1, stable=True)
    mass = ascending.cumsum(-1)
    skip_sorted = mass * math.log(value_count) <= tolerance
    skipped_mass = (ascending * skip_sorted).sum(-1).masked_fill(~has_partner, 0)
    skip = torch.zeros_like(skip_sorted).scatter(-1, order, skip_sorted)
    if jacobian:
        skip = log_p == -torch.inf
    context, position, value = (has_partner[:, :, None] & ~skip).nonzero(
        as_tuple=True
    )  # rows of a context are together
    weight = p[context, position, value]

    # One cell for each (context, position that is set): Σ_v p_i(v) of what the passes show at every position j.
    cells = count * length
    conditional_entropy, tv = log_p.new_zeros(2, cells, length)
    mixture = log_p.new_zeros(cells, length, value_count)
    change = log_p.new_zeros(cells, value_count, length, value_count) if jacobian else None
    for c, i, v, w in _parts(batch_size, context, position, value, weight):
        each = torch.arange(len(c), device=c.device)
        filled, open_ = tokens[c], masked[c]
        filled[each, i] = v
        open_[each, i] = False
        log_q = _log_p(model, filled, open_)
        q = log_q.exp()
        cell = c * length + i
        conditional_entropy.index_add_(0, cell, w[:, None] * entropy(log_q))
        tv.index_add_(0, cell, w[:, None] * (q - p[c]).abs().sum(-1).div(2))
        if jacobian:
            difference = log_q.clamp_min(LOWEST_LOG) - log_p[c].clamp_min(LOWEST_LOG)
            change[cell, v] = difference.masked_fill(~open_[:, :, None], 0)
        mixture.index_add_(0, cell, q.mul_(w[:, None, None]))

    shape = (count, length, length)
    stand_in = skipped_mass[:, :, None] * h[:, None, :]
    conditional_entropy = conditional_entropy.view(shape) + stand_in
    mixture = mixture.view(*shape, value_count) + skipped_mass[:, :, None, None] * p[:, None]
    off_diagonal = ~torch.eye(length, dtype=torch.bool, device=tokens.device)
    measured = has_partner[:, :, None] & masked[:, None, :] & off_diagonal
    result = {
        "entropy_drop": h[:, None, :] - conditional_entropy,
        "mixture": (entropy_of(mixture) - conditional_entropy).clamp_min(0),
        "tv": tv.view(shape),
        "inconsistency": kl_divergence(mixture.log(), log_p[:, None]),
    }
    result = {name: matrix.masked_fill(~measured, 0) for name, matrix in result.items()}
    if jacobian:
        result["jacobian"] = _contact_map(change.view(count, length, value_count, length, value_count), masked)
    passes = torch.bincount(context, minlength=count) + active
    error_bound = skipped_mass * math.log(value_count)
    return result | {"entropy": h, "passes": passes, "skipped_mass": skipped_mass, "error_bound": error_bound}


def _parts(size: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Consecutive parts of tensors of one length; none when they are empty."""
    for start in range(0, len(tensors[0]), size):
        yield tuple(tensor[start : start + size] for tensor in tensors)


def _log_p(model: MaskedModel, tokens: Tensor, open_: Tensor) -> Tensor:
    """Log-probabilities ``[B, L, V]`` of one call; meaningless where not open, since a model may say anything there."""
    logits = model(tokens).logits
    expected = (*tokens.shape, len(model.values))
    if logits.shape != expected:
        raise ValueError(f"the model gave logits {list(logits.shape)}, expected {list(expected)}: values only")
    return log_probabilities(logits, where=open_)


def _contact_map(change: Tensor, masked: Tensor) -> Tensor:
    """Centre ``J [B, L, V, L, V]`` over the masked positions, reduce it to ``[B, L, L]``, correct and symmetrise it."""
    number = masked.sum(1).clamp_min(1)[:, None, None, None, None]
    rows, columns = masked[:, :, None, None, None], masked[:, None, None, :, None]
    change = change * rows * columns
    change -= change.sum(1, keepdim=True) / number * rows
    change -= change.mean(2, keepdim=True)
    change -= change.sum(3, keepdim=True) / number * columns
    change -= change.mean(4, keepdim=True)
    corrected = average_product_correction(change.square().sum((2, 4)).sqrt())
    return (corrected + corrected.mT) / 2


def average_product_correction(scores: Tensor) -> Tensor:
    """``S_ij - S_i S_j / S`` with row sums, column sums and the sum of [..., L, L]; the diagonal counts as zero.

    Dunn, Wahl and Gloor 2008.
    """
    diagonal = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
    scores = scores.masked_fill(diagonal, 0)
    total = scores.sum((-2, -1), keepdim=True)
    product = scores.sum(-1, keepdim=True) * scores.sum(-2, keepdim=True)
    return (scores - product / torch.where(total == 0, 1, total)).masked_fill(diagonal, 0)


def symmetrise(directed: Tensor, probed: Tensor, masked: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The symmetric matrix ``[B, L, L]`` and where it is known, from a directed one and the probed rows ``[B, L]``.

    The mean of both directions where both rows were probed, the one that was where only one was; elsewhere, and on the
    diagonal, zero and not known. Given ``masked``, only pairs of masked positions are known.
    """
    forward = probed[:, :, None].expand_as(directed)
    if masked is not None:
        forward = forward & masked[:, None, :] & masked[:, :, None]
    forward = forward & ~torch.eye(directed.shape[-1], dtype=torch.bool, device=directed.device)
    backward = forward.mT
    total = directed.where(forward, 0) + directed.mT.where(backward, 0)
    return total / (forward.int() + backward.int()).clamp_min(1), forward | backward


def inconsistency_report(probes: Probes) -> dict[str, float | int | None]:
    """How far a model contradicts itself, over all measured directed pairs (``None``: nothing to average).

    ``mean_asymmetry``: mean ``|I(i→j) − I(j→i)|`` over pairs with both rows probed; ``negative_share`` and
    ``mean_negative_size`` of the entropy drop; ``mean_kl``: mean inconsistency; ``correlation`` (Pearson) of the two
    estimators; ``mean_mi`` (entropy drop), ``mean_mixture``; ``pairs``: the number of directed pairs.
    """
    defined = probes.defined
    drop, mixture, kl = (part[defined].double() for part in (probes.entropy_drop, probes.mixture, probes.inconsistency))
    asymmetry = (probes.entropy_drop - probes.entropy_drop.mT)[defined & defined.mT].double().abs()
    negative = drop < 0
    both = torch.stack([drop, mixture])
    varies = len(drop) > 1 and bool((both.std(1) > 0).all())
    return {
        "pairs": len(drop),
        "mean_mi": _mean(drop),
        "mean_mixture": _mean(mixture),
        "mean_asymmetry": _mean(asymmetry),
        "negative_share": _mean(negative.double()),
        "mean_negative_size": _mean(-drop[negative]),
        "mean_kl": _mean(kl),
        "correlation": torch.corrcoef(both)[0, 1].item() if varies else None,
    }


def _mean(values: Tensor) -> float | None:
    return values.mean().item() if len(values) else None


@torch.no_grad()
def probe_naively(model: MaskedModel, tokens: Tensor) -> Probes:
    """The definitions as a plain loop of single passes: the reference for ``probe``'s numbers and its speed."""
    masked, _ = _read_contexts(model, tokens)
    count, length = tokens.shape
    drop, mixture, tv, inconsistency = torch.zeros(4, count, length, length, dtype=torch.float64)
    h = torch.zeros(count, length, dtype=torch.float64)
    passes = torch.zeros(count, dtype=torch.int64)
    dtype = torch.float32
    for b in range(count):
        positions = masked[b].nonzero().flatten().tolist()
        if not positions:
            continue
        log_p = log_probabilities(model(tokens[b : b + 1]).logits[0, positions]).cpu()
        dtype = log_p.dtype
        h[b, positions] = entropy(log_p).double()
        passes[b] = 1
        for a, i in enumerate(positions):
            others = [j for j in positions if j != i]
            if not others:
                continue
            log_p_others = log_p[[k for k in range(len(positions)) if k != a]].double()
            expected_entropy, mixed, influence = 0.0, torch.zeros_like(log_p_others), 0.0
            for v, weight in enumerate(log_p[a].exp().tolist()):
                if weight == 0:
                    continue
                filled = tokens[b : b + 1].clone()
                filled[0, i] = v
                log_q = log_probabilities(model(filled).logits[0, others]).cpu().double()
                passes[b] += 1
                expected_entropy = expected_entropy + weight * entropy(log_q)
                mixed += weight * log_q.exp()
                influence = influence + weight * (log_q.exp() - log_p_others.exp()).abs().sum(-1) / 2
            drop[b, i, others] = h[b, others] - expected_entropy
            mixture[b, i, others] = entropy_of(mixed) - expected_entropy
            tv[b, i, others] = influence
            inconsistency[b, i, others] = kl_divergence(mixed.log(), log_p_others)
    nothing = torch.zeros(count, length, dtype=dtype)
    matrices = (part.to(dtype) for part in (drop, mixture, tv, inconsistency))
    return Probes(*matrices, masked, masked, h.to(dtype), passes, skipped_mass=nothing, error_bound=nothing)
