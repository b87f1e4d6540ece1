"""What the commands share: how errors end, which decoder is meant, and the map of one input."""

import errno
import io
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import click

DECODERS = {  # name: what its value is, the default, what is committed in a pass
    "sequential": ("entropy or random", "entropy", "one position, by rising entropy or in random order"),
    "naive": ("k", "4", "the k positions of least entropy"),
    "margin": ("k", "4", "the k positions of largest margin"),
    "confidence": ("threshold", "0.9", "all positions whose largest probability is at least this"),
    "factor": ("factor", "0.1", "the more positions at once, the surer each must be (confidence factor)"),
    "eb": ("budget in nats", "0.1", "by rising entropy while the sum fits the budget (entropy bounded)"),
    "mi": ("budget in nats", "0.1", "the same, charging mutual information too (MI-guided, by the shipped head)"),
    "pivot": (
        "budget in nats",
        "0.03",
        "what the others depend on most, with what hardly depends on it (by the head)",
    ),
}
GUIDED = ("mi", "pivot")  # by a pair head


UNWRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # and not an error of a network, say


class Group(click.Group):
    """Bad input, missing files and full disks end in one sentence, not in a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            result = super().invoke(context)
            if sys.stdout:
                sys.stdout.flush()  # here, where an error is still told
            return result
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)
        except BrokenPipeError:  # `maskmi … | head`
            _drop_output()
            sys.exit(0)
        except (ValueError, ImportError, OSError) as error:
            if isinstance(error, OSError) and error.errno in UNWRITTEN and not error.filename:
                _drop_output()  # or what could not be written is tried again at the end
                raise click.ClickException(f"the output could not be written: {error.strerror}") from error
            raise click.ClickException(_sentence(error)) from error


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def input_file(metavar: str) -> Callable:
    """The argument ``source``: a file, or ``-`` for the standard input, to be opened by :func:`open_text`."""
    path = click.Path(exists=True, dir_okay=False, allow_dash=True)
    return click.argument("source", type=path, default="-", metavar=metavar)


def open_text(source: str) -> TextIO:
    """The text of a file or of the standard input (``-``), plain or gzip; bytes that are not UTF-8 become U+FFFD.

    Raises:
        ValueError: for a damaged gzip file, or where there is no standard input.
    """
    from maskmi.text import decode_text

    if source != "-":
        name, data = source, Path(source).read_bytes()
    elif sys.stdin is None:
        raise ValueError("there is no standard input: name a file")
    else:
        name, data = "<stdin>", sys.stdin.buffer.read()
    text = io.StringIO(decode_text(data, name))
    text.name = name
    return text


class Number(click.FloatRange):
    """A finite number in a range."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        try:
            return super().convert(_finite(value), parameter, context)
        except (ValueError, TypeError):
            self.fail(f"{value!r} is not a finite number", parameter, context)


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError("not finite")
    return number


def seed_option(of: str) -> Callable:
    return click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help=f"Of {of}.")


def decoder_of(text: str, head: Callable[[], Any], *, alpha: float = 1.0, lam: float = 1.0, order: str = "entropy"):
    """The decoder that ``NAME`` or ``NAME:VALUE`` means.

    Args:
        head: gives the pair head; called for those of ``GUIDED`` only.
        alpha, lam, order: of MI-guided decoding.

    Raises:
        click.BadParameter: for an unknown name, a value that the decoder refuses, or ``alpha``, ``lam`` or ``order``
            beside another decoder than ``mi``.
    """
    from maskmi import decoding
    from maskmi.parameters import did_you_mean

    name, colon, given = text.partition(":")
    if name not in DECODERS:
        raise click.BadParameter(f"there is no decoder {name!r}{did_you_mean(name, DECODERS)}")
    if name != "mi" and (alpha, lam, order) != (1.0, 1.0, "entropy"):
        raise click.BadParameter(f"--alpha, --lam and --order are for the decoder mi, {name} has no use for them")
    if colon and not given:
        raise click.BadParameter(f"{text!r} has nothing after the colon: give a value, or {name} alone for the default")
    value = given or DECODERS[name][1]
    number = {"naive": int, "margin": int, "sequential": str}.get(name, _finite)
    try:
        value = number(value)
    except ValueError as error:
        kind = "a whole number" if number is int else "a number"
        raise click.BadParameter(f"{text!r}: {value!r} is not {kind} ({DECODERS[name][0]})") from error
    source = decoding.HeadMatrix(head()) if name == "pivot" or (name == "mi" and lam > 0) else None
    make = {
        "sequential": lambda: decoding.Sequential(value),
        "naive": lambda: decoding.Naive(value),
        "margin": lambda: decoding.Margin(value),
        "confidence": lambda: decoding.ConfidenceThreshold(value),
        "factor": lambda: decoding.ConfidenceFactor(value),
        "eb": lambda: decoding.EntropyBounded(value),
        "mi": lambda: decoding.MIGuided(
            value, lam=lam, pairwise=source, alpha=alpha, reading="cumulative", order=order
        ),
        "pivot": lambda: decoding.MIGuided(value, pairwise=source, alpha=0, reading="cumulative", order="pivot"),
    }[name]
    try:
        return make()
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error


def together(*options: Callable) -> Callable:
    """Several options as one decorator, in the order in which ``--help`` lists them."""

    def add(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def decoding_options(default: str, temperature: float) -> Callable:
    """The options of a command that decodes: ``decoder``, ``alpha``, ``lam``, ``order``, ``seed``, ``temperature``,
    ``quiet``.

    Args:
        default, temperature: of ``decoder`` and ``temperature``.
    """
    return together(
        click.option("--decoder", default=default, show_default=True, metavar="NAME[:VALUE]",
                     help="Which decoder, and its setting; `maskmi decoders` lists them."),
        click.option("--alpha", default=1.0, show_default=True, type=Number(0),
                     help="MI-guided: weight of a position's own entropy."),
        click.option("--lam", default=1.0, show_default=True, type=Number(0),
                     help="MI-guided: weight of the dependence."),
        click.option("--order", type=click.Choice(["entropy", "least_cost"]), default="entropy", show_default=True,
                     help="MI-guided: which position is tried next."),
        seed_option("the values drawn, and of random orders"),
        click.option("--temperature", default=temperature, show_default=True, type=Number(0),
                     help="Of the values; 0 takes the most probable one."),
        click.option("--quiet", is_flag=True, help="No progress bar."),
    )  # fmt: skip


def _drawable(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """The file of a picture, refused before the work where it can't be written."""
    if path and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}: make it first")
    if path and path.suffix not in (".png", ".svg", ".pdf"):
        raise click.BadParameter(f"{path.name!r} must end in .png, .svg or .pdf")
    return path


#: The options of a command that shows a map: ``probe``, ``plot``, ``top``; see :func:`write_map`.
map_options = together(
    click.option("--probe", is_flag=True, help="Measure it by probing, up to hundreds of passes, not by the head."),
    click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), callback=_drawable,
                 help="Draw the map into this file (png, svg, pdf)."),
    click.option("--top", default=20, show_default=True, type=click.IntRange(0),
                 help="How many pairs to list; 0 lists all."),
)  # fmt: skip


def write_map(
    model: Any,
    tokens: Any,
    masked: Any,
    head: Callable[[], Any],
    *,
    names: Callable[[int], Any],
    draw: Callable[[Any], Any],
    probe: bool,
    plot: Path | None,
    top: int,
) -> None:
    """Write the pairs of masked positions of one sequence by falling mutual information, and draw the map if asked to.

    Args:
        tokens, masked: [1, L].
        head: gives the pair head; called where nothing is probed.
        names: of a position.
        draw: from the matrix [L, L] to a figure.
    """
    import numpy as np
    import torch

    from maskmi.head import predict

    if probe:
        matrix, _ = probed(model, tokens)
    else:
        with torch.no_grad():
            matrix = predict(head(), model(tokens).hidden, masked)
    matrix, positions = matrix[0].float().numpy(), masked[0].nonzero().flatten().numpy()
    if plot:
        draw(matrix).savefig(plot)
    first, second = (positions[index] for index in np.triu_indices(len(positions), 1))
    values = matrix[first, second]
    for k in np.argsort(-values, kind="stable")[: top or None]:
        pair = [names(int(first[k])), names(int(second[k]))]
        click.echo(json.dumps({"pair": pair, "mi_nats": round(float(values[k]), 6)}))


def probed(model: Any, tokens: Any, tolerance: float = 0.0, progress: bool = False) -> tuple[Any, Any]:
    """The symmetric matrices [N, L, L] of ``tokens`` by the paper's estimator, in nats, and the passes [N]."""
    from maskmi.probing import probe, symmetrise

    found = probe(model, tokens, tolerance=tolerance, progress=progress)
    return symmetrise(found.entropy_drop, found.probed)[0], found.passes


def some_left(found: Sequence, skipped: Sequence[str], what: str) -> None:
    """Tell what was left out of the input.

    Raises:
        ValueError: where nothing else is there.
    """
    for sentence in skipped:
        click.echo(f"left out: {sentence}", err=True)
    if not len(found):
        raise ValueError(f"no {what} is left")
