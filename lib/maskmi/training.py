"""Training a masked model on processor cores: replicas in threads, Muon and AdamW, snapshots to go on from."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

WORKERS = 2  # fixed, since the order in which gradients are added decides the last digits


class Rates(Protocol):
    """What a recipe says of the learning rates."""

    muon_rate: float  # matrices
    adam_rate: float  # embeddings, norms, biases, the last layer


class Schedule(Rates, Protocol):
    """And of the steps."""

    steps: int
    warmup_steps: int
    decay_share: float


def learning_rate_factor(step: int, recipe: Schedule) -> float:
    """Linear warm-up, constant, then linear to zero over the last ``decay_share`` of the steps."""
    rising = (step + 1) / recipe.warmup_steps
    falling = (recipe.steps - step) / max(1, recipe.steps * recipe.decay_share)
    return min(1.0, rising, falling)


def check_origin(found: dict[str, Any], origin: dict[str, Any], path: Path) -> None:
    """Raises ValueError where a file's metadata ``found`` name another origin."""
    if any(found.get(key) != value for key, value in origin.items()):
        raise ValueError(f"{path} belongs to another recipe or to other data; delete it to start anew")


def optimizers_of(
    weights: dict[str, Tensor], matrices: tuple[str, ...], recipe: Rates, weight_decay: float = 0.0
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices whose names begin with one of ``matrices``, one for each worker, and AdamW for the rest.

    ``weight_decay`` is that of the matrices.
    """
    chosen = [p for name, p in weights.items() if p.ndim == 2 and name.startswith(matrices)]
    others = [p for p in weights.values() if not any(p is q for q in chosen)]
    return [
        *(torch.optim.Muon(chosen[i::WORKERS], recipe.muon_rate, weight_decay=weight_decay) for i in range(WORKERS)),
        torch.optim.AdamW(others, lr=recipe.adam_rate, weight_decay=0.0, betas=(0.9, 0.98)),
    ]


def fit(
    model: nn.Module,
    replicas: Sequence[nn.Module],
    recipe: Schedule,
    batches: Callable[[int], list[tuple[Tensor, Tensor]]],
    validate: Callable[[nn.Module], dict],
    path: Path,
    *,
    matrices: tuple[str, ...],
    origin: dict,
    snapshot_every: int,
    before: Sequence[dict] = (),
    unit: str = "shown",
) -> list[dict]:
    """Trains ``model`` in place by the gradients of ``replicas``, one a worker thread with one compute thread each.

    Writes ``<path>.jsonl`` and, every ``snapshot_every`` steps, ``<path>.snapshot.pt``, from which it goes on.

    Args:
        batches: micro-batches of a step, tokens and targets [B, L] each; the loss is the mean over targets but -100.
        validate: what else a row of the log says, of a replica.
        matrices: see :func:`optimizers_of`.
        origin: what the snapshot belongs to; JSON values.
        before: the log of the stage that this one continues.
        unit: what a row of the log calls the number of sequences shown.

    Returns:
        The rows of the log.
    """
    snapshot = path.with_name(f"{path.name}.snapshot.pt")
    weights = dict(model.named_parameters())
    optimizers = optimizers_of(weights, matrices, recipe)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    base_rates = [group["lr"] for group in groups]
    done, log = 0, list(before)
    earlier = log[-1]["step"] if log else 0
    if snapshot.exists():
        state = torch.load(snapshot, weights_only=True)
        check_origin(state["origin"], origin, snapshot)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]  # loading replaces them
        done, log = state["step"], state["log"]

    started, loss_sum, since = time.monotonic(), 0.0, 0
    shown = log[-1][unit] if log else 0

    @torch.no_grad()
    def to_replicas() -> None:
        for replica in replicas:
            for parameter, master in zip(replica.parameters(), weights.values(), strict=True):
                parameter.copy_(master)
                parameter.grad = None

    def backward(worker: int) -> float:
        losses = 0.0
        for part, target in parts[worker::WORKERS]:
            logits = replicas[worker](part).logits
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum") / count
            loss.backward()
            losses += loss.item()
        return losses

    to_replicas()
    progress = tqdm(range(done, recipe.steps), initial=done, total=recipe.steps, desc=f"train {path.name}", unit="step")
    with ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for step in progress:
            parts = batches(step)
            count = sum(int((target >= 0).sum()) for _, target in parts) or 1
            loss_sum += sum(pool.map(backward, range(WORKERS)))
            since += 1
            shown += sum(len(part) for part, _ in parts)
            for master, *parameters in zip(weights.values(), *(r.parameters() for r in replicas), strict=True):
                # A step of one micro-batch leaves the second worker without a share.
                master.grad = sum(parameter.grad.float() for parameter in parameters if parameter.grad is not None)
            for group, rate in zip(groups, base_rates, strict=True):
                group["lr"] = rate * learning_rate_factor(step, recipe)
            list(pool.map(lambda optimizer: optimizer.step(), optimizers))
            to_replicas()
            if (step + 1) % snapshot_every == 0 or step + 1 == recipe.steps:
                row = {"step": earlier + step + 1, unit: shown, "loss": loss_sum / since}
                row |= {"learning_rate": groups[0]["lr"], **validate(replicas[0])}
                row["seconds"] = (log[-1]["seconds"] if log else 0.0) + time.monotonic() - started
                started, loss_sum, since = time.monotonic(), 0.0, 0
                log.append(row)
                progress.set_postfix({k: v for k, v in row.items() if "loss" in k and isinstance(v, float)})
                state = {"origin": origin, "model": model.state_dict(), "step": step + 1, "log": log}
                state["optimizers"] = [optimizer.state_dict() for optimizer in optimizers]
                temporary = snapshot.with_suffix(".tmp")
                torch.save(state, temporary)
                temporary.replace(snapshot)
                path.with_name(f"{path.name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    return log
