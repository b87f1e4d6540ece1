"""One HTML page on which two decoders fill in the same sequence, side by side and step by step.

The page holds all that it needs: data, style, script (``page.html``, beside this file) and BokehJS, which draws the
maps. Opened from a disk it asks the network for nothing, and its content security policy forbids that it does.
"""

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import seaborn as sns
import torch
from bokeh.embed import json_item
from bokeh.models import ColorBar, ColumnDataSource, FixedTicker, HoverTool, LinearColorMapper, Range1d, Span
from bokeh.plotting import figure
from bokeh.resources import Resources
from torch import Tensor

from maskmi.artefacts import write_atomically
from maskmi.decoding import Trace, decode
from maskmi.head import PairHead, predict
from maskmi.model import MaskedModel, entropy, log_probabilities, mask_token, pad_token
from maskmi.study import Decoder

BOARD = 81  # cells of a Sudoku, which is drawn as a board; everything else is a sequence that wraps
LEVELS = 255


@dataclass(frozen=True)
class Recording:
    """What one decoder did to one sequence of ``L`` positions, none of them padding, in ``S`` steps."""

    states: Tensor  # int64 [S + 1, L], before each step, and at last what came out
    entropy: Tensor  # [S, L], nats, before each step; zero at what is visible
    information: Tensor  # [S, L, L], nats, mutual information before each step as the head predicts it
    passes: int  # network evaluations that the decoder took
    verdict: str  # what came of it, in a few words


@dataclass(frozen=True)
class Example:
    """A sequence as several decoders filled it in."""

    name: str
    truth: Tensor  # int64 [L]; where a decoder writes anything else, the page marks it
    recordings: Mapping[str, Recording]  # by the decoder's name


@torch.no_grad()
def record(
    model: MaskedModel,
    head: PairHead,
    tokens: Tensor,
    truth: Tensor,
    decoders: Mapping[str, Decoder],
    *,
    names: Sequence[str],
    verdict: Callable[[Tensor, Tensor], str],
    seed: int = 0,
    temperature: float = 0.0,
) -> list[Example]:
    """Decode each of ``tokens [N, L]`` by each decoder, and look at what the model and the head say at every step.

    Every state is evaluated once more for that, whatever the decoder looks at itself; the passes reported are the
    decoder's own. ``seed`` and ``temperature`` are those of :func:`maskmi.decoding.decode`.

    Args:
        truth: int64 ``[N, L]``, padded as ``tokens`` are.
        names: of the ``N`` sequences.
        verdict: from what came out and the truth, ``[L]`` each without padding, to what is said of it.

    Raises:
        ValueError: where nothing is masked in a sequence, or there are more or fewer names or truths than sequences.
    """
    mask = mask_token(model)
    if truth.shape != tokens.shape or len(names) != len(tokens):
        raise ValueError(
            f"{list(tokens.shape)} tokens need as many truths and names, not {len(truth)} and {len(names)}"
        )
    full = (tokens != mask).all(1).nonzero().flatten().tolist()
    if full:
        raise ValueError(f"nothing is masked in sequence {full[0]}: there is no decoding to show")
    recorded: list[dict[str, Recording]] = [{} for _ in tokens]
    real = tokens != pad_token(model)
    for decoder_name, decoder in decoders.items():
        run = decode(model, tokens, decoder, seed=seed, temperature=temperature, keep_trace=True)
        for row, recordings in enumerate(recorded):
            states = _states(tokens[row], run.trace, row, int(run.steps[row]), mask)
            output = model(states[:-1].to(model.device))
            masked = (states[:-1] == mask).to(model.device)
            nats = entropy(log_probabilities(output.logits, where=masked)).masked_fill(~masked, 0)
            information = predict(head, output.hidden, masked)
            keep = real[row]
            recordings[decoder_name] = Recording(
                states=states[:, keep],
                entropy=nats.cpu()[:, keep],
                information=information.cpu()[:, keep][:, :, keep],
                passes=int(run.passes[row]),
                verdict=verdict(states[-1, keep], truth[row, keep]),
            )
    rows = zip(names, truth, real, recorded, strict=True)
    return [Example(name, right[keep].long(), recordings) for name, right, keep, recordings in rows]


def _states(start: Tensor, trace: Trace, sequence: int, steps: int, mask: int) -> Tensor:
    """The states [steps + 1, L] that a sequence went through."""
    commits, again = ({k: v[t["sequence"] == sequence] for k, v in t.items()} for t in (trace.commits, trace.remasks))
    states = [start.long().cpu()]
    for step in range(steps):
        state = states[-1].clone()
        now = commits["step"] == step
        state[commits["position"][now]] = commits["value"][now]
        state[again["position"][again["step"] == step].long()] = mask
        states.append(state)
    return torch.stack(states)


def save(
    folder: Path | str, name: str, examples: Sequence[Example], *, title: str, description: str, values: Sequence[str]
) -> Path:
    """Write ``folder/name.html``; the folder is made if missing.

    Examples of 81 positions are drawn as Sudoku boards, others as sequences. ``values`` are the texts of the tokens, in
    token order (:attr:`maskmi.model.MaskedModel.values`). Title, description and names may hold any text.

    Raises:
        ValueError: without examples, and where one has fewer than two decoders or they began differently.
    """
    data = page_data(examples, values)
    data["map"] = _map(data["scale"]["information"])
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("maskmi", ""), autoescape=True, undefined=jinja2.StrictUndefined
    )
    page = environment.get_template("page.html").render(
        title=title,
        description=description,
        data=_packed(json.dumps(data, separators=(",", ":"))),
        bokeh=_packed("\n".join(Resources(mode="inline", components=["bokeh"], log_level="error").js_raw)),
    )
    path = Path(folder) / f"{name}.html"
    write_atomically(path, page.encode())
    return path


def _packed(text: str) -> str:
    """Base64 of the compressed text, in which nothing can end a script; half the size. The same bytes every time."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def page_data(examples: Sequence[Example], values: Sequence[str]) -> dict[str, Any]:
    """What the page's script reads, as plain lists, numbers and strings.

    Entropies and mutual information stand in base64, one byte for each masked position or pair ``i < j`` of these, by
    rows: ``round(255 √(nats / scale))``. The root keeps small values apart. A state is told by what changed,
    ``[position, token]``; the token ``len(values)`` is MASK.
    """
    if not examples:
        raise ValueError("a page needs at least one example")
    for example in examples:
        starts = [recording.states[0] for recording in example.recordings.values()]
        if len(starts) < 2 or any(not torch.equal(start, starts[0]) for start in starts):
            raise ValueError(f"{example.name!r} needs two decoders or more that began with the same state")
    recordings = [recording for example in examples for recording in example.recordings.values()]
    scale = {name: _top([getattr(one, name) for one in recordings]) for name in ("entropy", "information")}
    return {"values": list(values), "scale": scale, "examples": [_example(one, len(values), scale) for one in examples]}


def _example(example: Example, mask: int, scale: Mapping[str, float]) -> dict[str, Any]:
    length, board = len(example.truth), len(example.truth) == BOARD
    places = [f"r{i // 9 + 1}c{i % 9 + 1}" for i in range(length)] if board else [str(i + 1) for i in range(length)]
    start = next(iter(example.recordings.values())).states[0]
    runs = []
    for name, recording in example.recordings.items():
        steps = []
        for before, after, nats, information in zip(
            recording.states, recording.states[1:], recording.entropy, recording.information, strict=False
        ):
            masked = before == mask
            first, second = (masked[:, None] & masked).triu(1).nonzero(as_tuple=True)
            changed = (before != after).nonzero().flatten()
            steps.append(
                {
                    "changes": torch.stack([changed, after[changed]], 1).tolist(),
                    "entropy": _encoded(nats[masked], scale["entropy"]),
                    "information": _encoded(information[first, second], scale["information"]),
                }
            )
        runs.append({"name": name, "passes": recording.passes, "verdict": recording.verdict, "steps": steps})
    return {
        "name": example.name,
        "board": board,
        "places": places,
        "start": start.tolist(),
        "truth": example.truth.tolist(),
        "runs": runs,
    }


def _top(values: Sequence[Tensor]) -> float:
    return max([1e-6, *(float(part.max()) for part in values if part.numel())])


def _encoded(values: Tensor, top: float) -> str:
    levels = ((values.double().clamp(0, top) / top).sqrt() * LEVELS).round().to(torch.uint8)
    return base64.b64encode(levels.numpy().tobytes()).decode()


def _map(top: float) -> dict[str, Any]:
    """The map as BokehJS embeds it, still empty. The script fills in the models that have a name.

    An image cannot have a root scale, so it holds the roots, and the labels of its colours say what they are roots of.
    """
    ticks = [t for t in (0.0, *(m * 10.0**e for e in range(-4, 2) for m in (1, 3))) if t <= top]
    apart = [
        t for t, above in zip(ticks, [*ticks[1:], np.inf], strict=True) if np.sqrt(above / top) - np.sqrt(t / top) > 0.1
    ]
    colours = LinearColorMapper(
        palette=sns.color_palette("rocket_r", 256).as_hex(), low=0.0, high=float(np.sqrt(top)), name="colours"
    )
    plot = figure(
        sizing_mode="scale_width",
        aspect_ratio=0.92,
        tools="",
        toolbar_location=None,
        x_range=Range1d(0, 1, name="x"),
        y_range=Range1d(1, 0, name="y"),
        name="plot",
    )
    plot.grid.visible = False
    for axis in plot.axis:
        axis.ticker = FixedTicker(ticks=[])
        axis.update(axis_label="position", axis_label_text_font_style="normal")
        axis.update(major_tick_line_color=None, axis_line_color=None)
    empty = [np.zeros((1, 1), np.float32)]
    source = ColumnDataSource(
        {"image": empty, "nats": empty, "pair": [[[""]]], "x": [0], "y": [0], "size": [1]}, name="source"
    )
    image = plot.image(image="image", x="x", y="y", dw="size", dh="size", color_mapper=colours, source=source)
    plot.add_tools(HoverTool(renderers=[image], tooltips="@pair: @nats{0.000} nats", attachment="vertical"))
    for name, dimension in (("row", "width"), ("column", "height")):
        plot.add_layout(Span(dimension=dimension, location=-1, line_width=1.5, visible=False, name=name))
    bar = ColorBar(
        color_mapper=colours,
        ticker=FixedTicker(ticks=[float(np.sqrt(t)) for t in apart]),
        major_label_overrides={float(np.sqrt(t)): f"{t:g}" for t in apart},
        title="mutual information (nats)",
        title_text_font_style="normal",
        background_fill_alpha=0,
        height=10,
        padding=6,
        name="bar",
    )
    plot.add_layout(bar, "below")
    return json_item(plot)
