"""Speed of probing, of the head and of decoding, each against a plain way of doing the same, in one run.

Two things that are compared take turns, so that both meet the same machine; a figure is the median over the turns.
See benchmarks/README.md.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "lib"))

from maskmi.decoding import HeadMatrix, MIGuided, Naive, Sequential, decode  # noqa: E402
from maskmi.head import PairHead  # noqa: E402
from maskmi.parallel import WORKERS, InThreads, threaded_map  # noqa: E402
from maskmi.probing import Probes, probe, probe_naively  # noqa: E402
from maskmi.provenance import provenance  # noqa: E402
from maskmi.study import load_head  # noqa: E402
from maskmi.sudoku import study  # noqa: E402
from maskmi.sudoku.grid import relations  # noqa: E402
from maskmi.sudoku.mdm import CELLS, LAYERS, MASK, WIDTH, SudokuMDM  # noqa: E402

TOLERANCE = 1e-3  # nats, of pruned probing, as in the notebooks


def take_turns(turns: int, tasks: dict[str, Callable[[], object]], what: str) -> dict[str, list[float]]:
    """Seconds of each task in each turn, after one call each that doesn't count."""
    seconds = {name: [] for name in tasks}
    for turn in tqdm(range(turns + 1), desc=what, unit="turn"):
        # Every other turn goes backwards, so that none always follows the same one.
        for name, task in list(tasks.items())[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            task()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(one: list[float], other: list[float]) -> dict[str, float]:
    """Median, least and largest ratio of seconds, turn by turn."""
    ratios = [a / b for a, b in zip(one, other, strict=True)]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def flops_per_pass(model: SudokuMDM) -> int:
    """Floating-point operations of one pass' matrix products: linear layers, then both products of attention."""
    layers = sum(2 * m.in_features * m.out_features for m in model.modules() if isinstance(m, nn.Linear)) * CELLS
    return layers + LAYERS * 2 * (2 * CELLS * CELLS * WIDTH)


def matrix_product_rate(turns: int, sizes: tuple[int, ...]) -> dict[str, float | str]:
    """The best rate at which this machine multiplies large bfloat16 matrices, on all cores together or one each."""
    best = {"flops_per_second": 0.0, "shape": ""}
    for size in sizes:
        a, b = torch.randn(2, size, size).bfloat16()
        repeats = max(1, 2**33 // size**3)
        together = lambda a=a, b=b, n=repeats: [a @ b for _ in range(n)]  # noqa: E731
        ways = {
            "all cores": (together, 1),
            "one a core": (lambda f=together: threaded_map(lambda _: f(), range(WORKERS)), WORKERS),
        }
        seconds = take_turns(turns, {name: task for name, (task, _) in ways.items()}, f"matrix product {size}")
        for name, (_, jobs) in ways.items():
            rate = jobs * repeats * 2 * size**3 / min(seconds[name])
            if rate > best["flops_per_second"]:
                best = {"flops_per_second": rate, "shape": f"{size} x {size} x {size}, {name}"}
    return best


def measure_probing(half: InThreads, full: InThreads, tokens: Tensor, loop_contexts: int, turns: int) -> dict:
    """Batched probing of ``tokens`` against the loop, which runs on the first contexts only and is scaled by passes."""
    found: dict[str, Probes] = {}

    def run(name: str, function: Callable[[], Probes]) -> Callable[[], None]:
        return lambda: found.__setitem__(name, function())

    tasks = {
        "bfloat16": run("bfloat16", lambda: probe(half, tokens)),
        "bfloat16_pruned": run("bfloat16_pruned", lambda: probe(half, tokens, tolerance=TOLERANCE)),
        "float32": run("float32", lambda: probe(full, tokens)),
        "loop": run("loop", lambda: probe_naively(full.model, tokens[:loop_contexts])),
    }
    seconds = take_turns(turns, tasks, "probing")
    passes = {name: int(probes.passes.sum()) for name, probes in found.items()}
    # The loop would need as many passes as the exact table; it is timed on some of them.
    scale = passes["float32"] / passes["loop"]
    whole = seconds | {"loop": [s * scale for s in seconds["loop"]]}
    defined = found["float32"].defined
    mi = {name: found[name].entropy_drop[defined].double() for name in ("float32", "bfloat16")}
    pruning = (found["bfloat16"].entropy_drop - found["bfloat16_pruned"].entropy_drop).abs()[defined]
    return {
        "contexts": len(tokens),
        "loop_contexts": loop_contexts,
        "rows": {
            name: {
                "seconds_per_context": statistics.median(whole[name]) / len(tokens),
                "passes_per_context": passes["float32" if name == "loop" else name] / len(tokens),
                "passes_per_second": passes[name] / statistics.median(seconds[name]),
                "speedup_over_loop": ratio(whole["loop"], whole[name]),
            }
            for name in tasks
        },
        "agreement": {
            "float32_against_loop_max_nats": max(
                (getattr(found["float32"], n)[:loop_contexts] - getattr(found["loop"], n)).abs().max().item()
                for n in ("entropy_drop", "mixture", "tv")
            ),
            "pruned_max_nats": pruning.max().item(),
            "pruned_mean_nats": pruning.mean().item(),
            "bfloat16_correlation": torch.corrcoef(torch.stack([mi["float32"], mi["bfloat16"]]))[0, 1].item(),
            "bfloat16_mean_absolute_nats": (mi["float32"] - mi["bfloat16"]).abs().mean().item(),
            "mean_mi_nats": mi["float32"].mean().item(),
        },
    }


def budget_for(model: InThreads, head: Callable, puzzles: Tensor, share: float, tries: int = 8) -> float:
    """The cumulative budget of about that share of sequential decoding's passes, by bisection."""
    goal = share * (puzzles == MASK).sum(1).double().mean().item()
    low, high = 1e-3, 30.0
    for _ in tqdm(range(tries), desc="budget", unit="try"):
        middle = (low * high) ** 0.5
        decoder = MIGuided(middle, pairwise=HeadMatrix(head), reading="cumulative")
        passes = decode(model, puzzles, decoder).passes.double().mean()
        low, high = (middle, high) if passes > goal else (low, middle)
    return (low * high) ** 0.5


def measure_decoding(model: InThreads, head: PairHead, puzzles: Tensor, turns: int) -> dict:
    """MI-guided and naive decoding against sequential, all puzzles in one batch."""
    spent = []

    def timed_head(hidden: Tensor, masked: Tensor) -> Tensor:
        start = time.perf_counter()
        matrix = head(hidden, masked)
        spent.append(time.perf_counter() - start)
        return matrix

    budget = budget_for(model, head, puzzles[:32], 0.25, tries=8 if turns > 1 else 2)
    decoders = {
        "sequential": Sequential(),
        "mi_guided": MIGuided(budget, pairwise=HeadMatrix(timed_head), reading="cumulative"),
        "naive_4": Naive(4),
    }
    last = {}

    def run(name: str) -> None:
        last[name] = decode(model, puzzles, decoders[name], batch_size=len(puzzles))

    seconds = take_turns(turns, {name: partial(run, name) for name in decoders}, "decoding")
    passes = {name: result.passes.double().mean().item() for name, result in last.items()}
    steps = len(spent) // (turns + 1)
    head_seconds = [sum(spent[k * steps : (k + 1) * steps]) for k in range(1, turns + 1)]
    return {
        "puzzles": len(puzzles),
        "budget": budget,
        "rows": {
            name: {
                "passes": passes[name],
                "seconds": statistics.median(seconds[name]),
                "passes_ratio": passes[name] / passes["sequential"],
                "seconds_ratio": ratio(seconds[name], seconds["sequential"]),
            }
            for name in decoders
        },
        "head_share": ratio(head_seconds, seconds["mi_guided"]),
    }


def measure_head(model: InThreads, head: PairHead, turns: int, masked_cells: int = 30, batch: int = 128) -> dict:
    """The head's seconds in those of a pass, at a number of masked cells."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 9, (batch, CELLS), generator=generator)
    masked = torch.rand(batch, CELLS, generator=generator).argsort(1) < masked_cells
    tokens[masked] = MASK
    hidden = model(tokens).hidden

    def without_gradients() -> Tensor:
        with torch.no_grad():
            return head(hidden, masked)

    seconds = take_turns(turns, {"head": without_gradients, "pass": partial(model, tokens)}, "head")
    return {"masked_cells": masked_cells, "batch": batch, "of_a_pass": ratio(seconds["head"], seconds["pass"])}


def measure_batches(model: InThreads, sizes: tuple[int, ...], passes: int, turns: int) -> list[dict]:
    """Passes a second by batch size, in threads and by the bare model."""
    rows = []
    for size in sizes:
        tokens = torch.randint(0, 10, (size, CELLS), generator=torch.Generator().manual_seed(size))
        calls = max(1, passes // size)

        def repeat(function: Callable, tokens: Tensor = tokens, calls: int = calls) -> None:
            with torch.no_grad():
                for _ in range(calls):
                    function(tokens)

        tasks = {"in_threads": partial(repeat, model), "bare": partial(repeat, model.model)}
        seconds = take_turns(turns, tasks, f"batch {size}")
        rates = {name: calls * size / statistics.median(seconds[name]) for name in tasks}
        rows.append({"batch": size, "passes_per_second": rates, "gain": ratio(seconds["bare"], seconds["in_threads"])})
    return rows


def load(options: argparse.Namespace) -> tuple[InThreads, InThreads, PairHead, dict]:
    """The model in bfloat16 and float32, the head, and what identifies them."""
    untrained = PairHead(WIDTH, torch.as_tensor(relations()))
    if options.random_weights:
        torch.manual_seed(0)
        model = SudokuMDM(2)
        for layer in model.layers:
            for part in (layer.out, layer.down):
                nn.init.normal_(part.weight, std=0.05)
        model = model.eval().requires_grad_(False)
        half = SudokuMDM(2).bfloat16().eval().requires_grad_(False)
        half.load_state_dict(model.state_dict())
        return InThreads(half), InThreads(model), untrained, {"backbone": "random weights", "head": "untrained"}
    half, full = (
        study.load_backbone(options.study, checkpoint=options.checkpoint, dtype=dtype)
        for dtype in (torch.bfloat16, torch.float32)
    )
    try:
        head, kind = load_head(half), "shipped"
    except FileNotFoundError:
        head, kind = untrained, "untrained"  # as fast, but its budget says nothing
    return half.model, full.model, head, {"backbone": half.name, "backbone_sha256": half.sha256, "head": kind}


def table(results: dict) -> str:
    """The results as Markdown."""

    def spread(r: dict) -> str:
        return f"{r['median']:.3g} ({r['low']:.3g}–{r['high']:.3g})"

    probing, decoding, head = results["probing"], results["decoding"], results["head"]
    lines = [
        "| probing | ms a context | passes a context | passes/s | times the loop's speed |",
        "|---|---|---|---|---|",
    ]
    for name, row in probing["rows"].items():
        ms, each, rate = 1e3 * row["seconds_per_context"], row["passes_per_context"], row["passes_per_second"]
        lines.append(f"| {name} | {ms:.1f} | {each:.0f} | {rate:.0f} | {spread(row['speedup_over_loop'])} |")
    lines += ["", "| agreement | |", "|---|---|"]
    lines += [f"| {name} | {value:.3g} |" for name, value in probing["agreement"].items()]
    product = results["matrix_products"]
    lines += ["", "| matrix products, bfloat16 | GFLOP/s |", "|---|---|"]
    lines.append(f"| largest matrices ({product['shape']}) | {product['flops_per_second'] / 1e9:.0f} |")
    lines.append(f"| probing | {product['probing_flops_per_second'] / 1e9:.0f}, {product['share']:.1%} of that |")
    lines += ["", "| decoding | passes | seconds | passes, ratio | seconds, ratio |", "|---|---|---|---|---|"]
    for name, row in decoding["rows"].items():
        ratios = f"{row['passes_ratio']:.3f} | {spread(row['seconds_ratio'])}"
        lines.append(f"| {name} | {row['passes']:.1f} | {row['seconds']:.2f} | {ratios} |")
    lines += ["", f"The head takes {spread(decoding['head_share'])} of MI-guided decoding's time, and of a pass at"]
    lines[-1] += f" {head['masked_cells']} masked cells {spread(head['of_a_pass'])}."
    lines += ["", "| batch | passes/s in threads | passes/s bare | gain |", "|---|---|---|---|"]
    for row in results["batches"]:
        rates = row["passes_per_second"]
        lines.append(f"| {row['batch']} | {rates['in_threads']:.0f} | {rates['bare']:.0f} | {spread(row['gain'])} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--study", default="sudoku", choices=study.BACKBONES, help="default: %(default)s")
    parser.add_argument("--checkpoint", default="shipped", help="path of another backbone than the study's shipped one")
    parser.add_argument("--random-weights", action="store_true", help="an untrained model, to try this script")
    parser.add_argument("--puzzles", type=int, default=200, help="puzzles to decode (default: %(default)s)")
    parser.add_argument("--contexts", type=int, default=16, help="contexts to probe (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="repetitions of each comparison (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results.json", help="%(default)s")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, the figures mean little")
    options = parser.parse_args(arguments)
    if min(options.puzzles, options.contexts, options.turns) < 1:
        parser.error("--puzzles, --contexts and --turns must be at least 1")
    if options.quick:
        options.puzzles, options.contexts, options.turns = 2, 16, 1
    half, full, head, identity = load(options)

    puzzles = torch.from_numpy(study.puzzle_set("unique", options.puzzles).puzzles.astype(np.int64))
    tokens = study.contexts(options.contexts)
    if options.quick:  # those with the fewest masked cells
        tokens = tokens[(tokens == MASK).sum(1).argsort()[:2]]
    probing = measure_probing(half, full, tokens, 1 if options.quick else min(2, options.contexts), options.turns)
    product = matrix_product_rate(options.turns, (1024,) if options.quick else (1024, 2048, 4096))
    flops = flops_per_pass(half.model)
    achieved = flops * probing["rows"]["bfloat16"]["passes_per_second"]
    product |= {"flops_per_pass": flops, "probing_flops_per_second": achieved}
    product["share"] = achieved / product["flops_per_second"]
    sizes = (1, 8, 32) if options.quick else (1, 8, 32, 128, 512)
    results = {
        **identity,
        "provenance": provenance(seed=0, dtype=torch.bfloat16) | {"profile": "quick" if options.quick else "benchmark"},
        "workers": WORKERS,
        "turns": options.turns,
        "probing": probing,
        "matrix_products": product,
        "decoding": measure_decoding(half, head, puzzles, options.turns),
        "head": measure_head(half, head, options.turns, batch=8 if options.quick else 128),
        "batches": measure_batches(half, sizes, 32 if options.quick else 512, options.turns),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    error = probing["agreement"]["float32_against_loop_max_nats"]
    if error > 1e-4:
        sys.exit(f"probing and the loop differ by {error:.2g} nats: more than rounding explains")


if __name__ == "__main__":
    main()
