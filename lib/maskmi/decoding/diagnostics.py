"""What a trace says of how a decoder worked: the order of commitments, and whether masking again changed anything."""

import torch
from torch import Tensor

from maskmi.decoding.loop import Trace


def remasked(trace: Trace) -> dict[str, Tensor]:
    """Every masking again, with the value before and the one after, as columns sorted by sequence, position and step.

    Columns (int64): ``sequence, position, step`` (in which it was masked again), ``before`` (the value it had),
    ``after`` (the next value committed there, -1 if none was) and ``waited`` (steps until then, -1 if none was).

    Raises:
        ValueError: where a position is masked again that the trace never committed.
    """
    commits, remasks = trace.commits, trace.remasks
    none = torch.full((len(remasks["step"]),), -1)
    events = {
        name: torch.cat([commits[name].long(), remasks[name].long()]) for name in ("sequence", "position", "step")
    }
    value = torch.cat([commits["value"].long(), none])
    again = torch.cat([torch.zeros(len(commits["step"]), dtype=torch.bool), torch.ones(len(none), dtype=torch.bool)])
    order = torch.arange(len(value))
    for name in ("step", "position", "sequence"):  # stable sorts, the last one counts most
        order = order[events[name][order].sort(stable=True).indices]
    sequence, position, step = (column[order] for column in events.values())
    value, again = value[order], again[order]

    # A position is committed and masked again in turn, so the neighbours of a masking again are its two values.
    at = again.nonzero().squeeze(1)
    before, after = at - 1, (at + 1).clamp_max(len(value) - 1)

    def is_value(neighbour: Tensor) -> Tensor:
        same = (sequence[neighbour] == sequence[at]) & (position[neighbour] == position[at])
        return same & (neighbour >= 0) & ~again[neighbour]

    if not is_value(before).all():
        bad = int(at[~is_value(before)][0])
        where = f"position {int(position[bad])} of sequence {int(sequence[bad])} in step {int(step[bad])}"
        raise ValueError(f"the trace masks {where} again, which it never committed: it is not whole")
    follows = is_value(after)
    return {
        "sequence": sequence[at],
        "position": position[at],
        "step": step[at],
        "before": value[before],
        "after": value[after].masked_fill(~follows, -1),
        "waited": (step[after] - step[at]).masked_fill(~follows, -1),
    }


def flip_flop_rate(trace: Trace) -> float:
    """Share of the positions masked again that came back to the same value; NaN where none was committed again.

    Source: arXiv 2606.12232, which uses it to ask whether masking again does anything. High: the passes were for
    nothing. A position masked again twice counts twice.
    """
    events = remasked(trace)
    back = events["after"] >= 0
    return (events["before"] == events["after"])[back].double().mean().item()


def commitment_steps(trace: Trace, count: int, length: int, which: str = "last") -> Tensor:
    """The step ``[count, length]`` int64 in which each position was committed, -1 where it never was (given).

    ``which``: ``'last'``, the commitment that stayed, or ``'first'``; they differ where a position was masked again.
    """
    if which not in ("first", "last"):
        raise ValueError(f"which must be 'first' or 'last', not {which!r}")
    commits = trace.commits
    cell = commits["sequence"].long() * length + commits["position"].long()
    reduce = "amax" if which == "last" else "amin"
    steps = torch.full((count * length,), -1)
    return steps.scatter_reduce(0, cell, commits["step"].long(), reduce, include_self=False).reshape(count, length)


def relative_order(steps: Tensor) -> Tensor:
    """When each position came, ``[N, L]`` float64 in 0 (first) … 1 (last), NaN at positions never committed (-1).

    ``steps`` as of :func:`commitment_steps`. Positions of one step share the mean of their ranks, so sequences and
    decoders with different numbers of steps compare; where all came in one step that is 0.5.
    """
    known = steps >= 0
    both = known[:, :, None] & known[:, None, :]
    earlier = (both & (steps[:, None, :] < steps[:, :, None])).sum(2)
    equal = (both & (steps[:, None, :] == steps[:, :, None])).sum(2) - 1
    last = (known.sum(1, keepdim=True) - 1).clamp_min(1)
    order = (earlier + equal / 2.0).double() / last
    order = torch.where(known.sum(1, keepdim=True) == 1, 0.5, order)
    return order.masked_fill(~known, torch.nan)


def commitments_per_step(trace: Trace, count: int) -> Tensor:
    """How many positions each step committed: ``[count, steps]`` int64, 0 after a sequence's last step."""
    commits = trace.commits
    steps = int(commits["step"].max()) + 1 if len(commits["step"]) else 0
    cell = commits["sequence"].long() * steps + commits["step"].long()
    return cell.bincount(minlength=count * steps).reshape(count, steps)
