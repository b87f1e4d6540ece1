"""What the commands share: how errors end, and which decoder is meant."""

import os
import sys
from collections.abc import Callable
from typing import Any

import click

DECODERS = {  # name: what its value is, the default, what is committed in a pass
    "sequential": ("entropy or random", "entropy", "one position, by rising entropy or in random order"),
    "naive": ("k", "4", "the k positions of least entropy"),
    "margin": ("k", "4", "the k positions of largest margin"),
    "confidence": ("threshold", "0.9", "all positions whose largest probability is at least this"),
    "factor": ("factor", "0.1", "the more positions at once, the surer each must be (confidence factor)"),
    "eb": ("budget in nats", "0.1", "by rising entropy while the sum fits the budget (entropy bounded)"),
    "mi": ("budget in nats", "0.1", "the same, charging mutual information too (MI-guided, by the shipped head)"),
}


class Group(click.Group):
    """Bad input and missing files end in one sentence, not in a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (ValueError, FileNotFoundError, ImportError) as error:
            raise click.ClickException(_sentence(error)) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)
        except BrokenPipeError:  # `maskmi … | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)


def _sentence(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no file {error.filename}"
    return str(error)


def decoder_of(text: str, head: Callable[[], Any], *, alpha: float = 1.0, lam: float = 1.0, order: str = "entropy"):
    """The decoder that ``NAME`` or ``NAME:VALUE`` means.

    Args:
        head: gives the pair head; called for ``mi`` only.
        alpha, lam, order: of MI-guided decoding.

    Raises:
        click.BadParameter: for an unknown name or a value that the decoder refuses.
    """
    from maskmi import decoding
    from maskmi.parameters import did_you_mean

    name, _, given = text.partition(":")
    if name not in DECODERS:
        raise click.BadParameter(f"there is no decoder {name!r}{did_you_mean(name, DECODERS)}")
    value = given or DECODERS[name][1]
    source = decoding.HeadMatrix(head()) if name == "mi" and lam > 0 else None
    make = {
        "sequential": lambda: decoding.Sequential(value),
        "naive": lambda: decoding.Naive(int(value)),
        "margin": lambda: decoding.Margin(int(value)),
        "confidence": lambda: decoding.ConfidenceThreshold(float(value)),
        "factor": lambda: decoding.ConfidenceFactor(float(value)),
        "eb": lambda: decoding.EntropyBounded(float(value)),
        "mi": lambda: decoding.MIGuided(
            float(value), lam=lam, pairwise=source, alpha=alpha, reading="cumulative", order=order
        ),
    }[name]
    try:
        return make()
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error


def decoding_options(default: str) -> Callable:
    """The options of a command that decodes: ``decoder``, ``alpha``, ``lam``, ``order``, ``seed``, ``quiet``."""
    options = [
        click.option("--decoder", default=default, show_default=True, metavar="NAME[:VALUE]",
                     help="Which decoder, and its setting; `maskmi decoders` lists them."),
        click.option("--alpha", default=1.0, show_default=True, help="MI-guided: weight of a position's own entropy."),
        click.option("--lam", default=1.0, show_default=True, help="MI-guided: weight of the dependence."),
        click.option("--order", type=click.Choice(["entropy", "least_cost"]), default="entropy", show_default=True,
                     help="MI-guided: which position is tried next."),
        click.option("--seed", default=0, show_default=True, help="Of the values drawn, and of random orders."),
        click.option("--quiet", is_flag=True, help="No progress bar."),
    ]  # fmt: skip

    def add(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def strongest_pairs(matrix: Any, positions: Any, names: Callable[[int], Any], top: int) -> list[dict[str, Any]]:
    """The ``top`` pairs (0: all) of ``positions`` by falling entry of the symmetric ``matrix`` [L, L], in nats."""
    import numpy as np

    first, second = (np.asarray(positions)[index] for index in np.triu_indices(len(positions), 1))
    values = np.asarray(matrix)[first, second]
    order = np.argsort(-values, kind="stable")[: top or None]
    return [
        {"pair": [names(int(first[k])), names(int(second[k]))], "mi_nats": round(float(values[k]), 6)} for k in order
    ]
