"""The joint error of parallel steps: the nats of dependence that committing several positions at once ignored."""

from dataclasses import dataclass

import torch
from torch import Tensor

from maskmi.decoding.loop import Trace
from maskmi.model import MaskedModel, log_probabilities, mask_token


@dataclass
class JointError:
    """Columns over the parallel steps (those with two members or more), by step and then by sequence, on the CPU.

    ``left`` is the number of masked positions before the step, ``error`` in nats; ``spent`` is what the decoder
    reported of its budget, NaN where it reports none.
    """

    sequence: Tensor
    step: Tensor
    members: Tensor
    left: Tensor
    error: Tensor
    spent: Tensor
    passes: int  # evaluations that measuring took: one for each member of a step but its first


@torch.no_grad()
def joint_error(model: MaskedModel, tokens: Tensor, trace: Trace, *, batch_size: int = 256) -> JointError:
    """Measure ``sum over j of [log p(x_j | C) - log p(x_j | C, earlier members)]`` of every parallel step (spec §5).

    ``C`` is the state before the step, the members are taken by rising entropy (ties: by position). Positive: the step
    thought its values more probable than they are beside one another; negative: they support one another. Its
    expectation under independent draws from the ``p(. | C)`` is the KL divergence between their product and the
    model's joint in that order, so positive; greedy values may give either sign. ``inf`` where the model excludes a
    combination altogether.

    Args:
        tokens: ``[N, L]`` as they were given to ``decode``.
        trace: kept by ``decode(…, keep_trace=True)``.
        batch_size: most rows of one network call.
    """
    commits, remasks, mask = trace.commits, trace.remasks, mask_token(model)
    state = tokens.cpu().long().clone()
    order = torch.arange(len(commits["step"]))
    for column in ("position", "entropy", "sequence", "step"):  # stable sorts, the last one counts most
        order = order[commits[column][order].sort(stable=True).indices]
    commits = {name: column[order] for name, column in commits.items()}
    steps = int(commits["step"].max()) + 1 if len(order) else 0
    by_step = commits["step"].long().bincount(minlength=steps).tolist()
    remasks_of = [(remasks["step"] == s).nonzero().squeeze(1) for s in range(steps)]
    contexts, targets, groups = [], [], []
    start = 0
    # Replay all sequences at once, step by step: only the contexts depend on it, the network passes follow in bulk.
    for s, size in enumerate(by_step):
        part = slice(start, start + size)
        start += size
        sequence, position, value = (commits[n][part].long() for n in ("sequence", "position", "value"))
        unique, group, members = sequence.unique_consecutive(return_inverse=True, return_counts=True)
        rank = torch.arange(size) - (members.cumsum(0) - members)[group]
        later = (rank > 0).nonzero().squeeze(1)
        # The members of a group are consecutive, so the earlier ones of row i are the rank[i] rows before it.
        owner = torch.arange(len(later)).repeat_interleave(rank[later])
        offset = torch.arange(len(owner)) - (rank[later].cumsum(0) - rank[later])[owner]
        earlier = later[owner] - 1 - offset
        context = state[sequence[later]]
        context[owner, position[earlier]] = value[earlier]
        contexts.append(context)
        targets.append(torch.stack([position[later], value[later]], dim=1))
        several = members > 1
        left = (state[unique[several]] == mask).sum(1)
        groups.append((unique[several], torch.full_like(left, s), members[several], left))
        state[sequence, position] = value
        again = remasks_of[s]
        state[remasks["sequence"][again].long(), remasks["position"][again].long()] = mask
    if not any(len(context) for context in contexts):  # every step committed a single position
        empty = torch.empty(0)
        return JointError(*[empty.long()] * 4, empty, empty, 0)
    context, target = torch.cat(contexts), torch.cat(targets)
    given_earlier = [
        log_probabilities(model(chunk.to(model.device)).logits[torch.arange(len(chunk)), aim[:, 0]])
        .gather(1, aim[:, 1:].to(model.device))
        .squeeze(1)
        .cpu()
        for chunk, aim in zip(context.split(batch_size), target.split(batch_size), strict=True)
        if len(chunk)  # no step took several positions
    ]
    sequence, step, members, left = (torch.cat(column) for column in zip(*groups, strict=True))
    key = commits["step"].long() * len(state) + commits["sequence"].long()
    is_later = torch.cat([key.new_zeros(1, dtype=torch.bool), key[1:] == key[:-1]])
    term = commits["log_prob"][is_later] - torch.cat(given_earlier)
    group = torch.arange(len(members)).repeat_interleave(members - 1)
    error = torch.zeros(len(members), dtype=term.dtype).index_add_(0, group, term)
    reported, where = (trace.steps["step"] * len(state) + trace.steps["sequence"]).sort()
    spent = trace.steps["spent"][where[torch.searchsorted(reported, step * len(state) + sequence)]]
    return JointError(sequence, step, members, left, error, spent, len(context))
