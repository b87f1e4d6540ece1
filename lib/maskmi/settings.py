"""Settings of decoders: a decoder and the description that tells it from others, with its names in figures."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from maskmi.decoding import Corrected, Decision, EntropyBounded, MIGuided, View

Setting = tuple[dict[str, Any], Callable[[View], Decision]]
#: Part of a matrix's name: the family that such a decoder is drawn as.
FAMILIES = {
    "tv": "tv_guided",
    "jacobian": "jacobian_guided",
    "attention": "attention_guided",
    "probed": "mi_oracle",
}
MAIN_MATRICES = ("head", "head: tv", "attention", "probed", "probed: jacobian")
#: Decoders whose name in figures is not that of their settings.
TITLES = {
    "agdo": "AGDO's order",
    "dapd": "DAPD",
    "depcap": "DepCap",
    "info_gain": "Info-Gain",
    "klass": "KLASS",
    "p2": "P2",
    "punt": "PUNT",
    "remdm_cap": "ReMDM cap",
    "remdm_loop": "ReMDM loop",
    "saber": "Saber",
    "tie": "TIE",
    "wino": "WINO",
}
#: What a setting is named by beside its curve, in this order.
SYMBOLS = {
    "k": "k",
    "n": "n",
    "block": "B",
    "shortest": "L",
    "steps": "T",
    "budget": "γ",
    "gamma": "γ",
    "threshold": "τ",
    "threshold_back": "τ back",
    "low": "τ low",
    "high": "τ high",
    "confidence": "c",
    "bypass": "bypass",
    "factor": "f",
    "kl": "ε",
    "epsilon": "ε",
    "eta": "η",
    "history": "history",
    "fallback": "else",
    "dependence": "δ",
}


def mi_setting(
    budget: float,
    source: Any,
    matrix: str,
    *,
    lam: float = 1.0,
    alpha: float = 1.0,
    reading: str = "cumulative",
    order: str = "entropy",
) -> Setting:
    """MI-guided decoding with its description; ``matrix`` names the source."""
    settings = {"budget": budget, "lam": lam, "alpha": alpha, "reading": reading, "order": order, "matrix": matrix}
    asked = source if lam or order == "pivot" else None
    decoder = MIGuided(budget, lam=lam, pairwise=asked, alpha=alpha, reading=reading, order=order)
    return {"decoder": "mi_guided", **settings}, decoder


def entropy_bounded_setting(budget: float, proxy: str = "entropy") -> Setting:
    """Entropy-bounded decoding with its description."""
    settings = {"decoder": "entropy_bounded", "budget": budget, "proxy": proxy}
    return settings, EntropyBounded(budget, proxy)


def setting_of(decoder: str, kind: Callable[..., Callable[[View], Decision]], **options: Any) -> Setting:
    """A decoder that its arguments ``options`` describe, under the name ``decoder``."""
    return {"decoder": decoder, **options}, kind(**options)


def grid(decoder: str, kind: Callable[..., Callable[[View], Decision]], **options: Any) -> Iterator[Setting]:
    """:func:`setting_of` for every combination of the ``options`` that are tuples of choices; the first varies last."""
    choices = [value if isinstance(value, tuple) else (value,) for value in options.values()]
    for chosen in product(*choices):
        yield setting_of(decoder, kind, **dict(zip(options, chosen, strict=True)))


def corrected_setting(inner: Setting, threshold: float, *, every: int = 1, dependence: float | None = None) -> Setting:
    """MI-guided decoding with the leave-one-out check after its steps; ``inner`` is of :func:`mi_setting`."""
    settings, decoder = inner
    own = {"threshold": threshold, "every": every} | ({} if dependence is None else {"dependence": dependence})
    return settings | {"decoder": "corrected", **own}, Corrected(decoder, threshold, every, dependence)


def each_once(sweep: Iterable[Setting]) -> Iterator[Setting]:
    """A sweep without the settings that came before."""
    seen = []
    for settings, decoder in sweep:
        if settings not in seen:
            seen.append(settings)
            yield settings, decoder


def is_main(settings: Mapping[str, Any]) -> bool:
    """Whether a setting belongs to the main figures: each decoder in its standard form, without the ablations."""
    if settings["decoder"] == "entropy_bounded":
        return settings["proxy"] == "entropy"
    if settings["decoder"] != "mi_guided":
        return True
    standard = (settings["lam"], settings["alpha"], settings["reading"], settings["order"])
    return standard == (1.0, 1.0, "cumulative", "entropy") and settings["matrix"] in MAIN_MATRICES


def family_of(settings: Mapping[str, Any]) -> str:
    """The decoder's family in figures: MI-guided decoding goes by what its matrix is."""
    if settings["decoder"] != "mi_guided":
        return settings["decoder"]
    for part, family in FAMILIES.items():
        if part in settings["matrix"]:
            return family
    return "mi_guided"


def curve_of(settings: Mapping[str, Any]) -> str:
    """Name of the curve that a setting lies on: all but the parameters that trade passes for quality."""
    decoder = settings["decoder"]
    if decoder == "corrected":
        return f"{curve_of({**settings, 'decoder': 'mi_guided'})}, corrected"
    if decoder == "entropy_bounded":
        return "EB" if settings["proxy"] == "entropy" else f"EB by {settings['proxy']}"
    if decoder == "mi_guided":
        return _mi_curve(settings)
    name = TITLES.get(decoder, decoder.replace("_", " "))
    name += ", random" if decoder == "sequential" and settings.get("order") == "random" else ""
    name += f" ({settings['matrix']})" if "matrix" in settings else ""
    name += f" ({settings['inner'].replace('_', ' ')})" if "inner" in settings else ""
    return name + (", leave-one-out" if settings.get("check") == "leave_one_out" else "")


def _mi_curve(settings: Mapping[str, Any]) -> str:
    if settings["lam"] == 0:
        return "entropy only (λ=0)"
    name = f"MI ({settings['matrix']})"
    name += "" if settings["lam"] == 1 else f" λ={settings['lam']:g}"
    name += "" if settings["alpha"] == 1 else f" α={settings['alpha']:g}"
    name += {"entropy": "", "least_cost": " least cost", "pivot": " pivot"}[settings["order"]]
    return name + (" threshold" if settings["reading"] == "threshold" else "")


def contender_of(settings: Mapping[str, Any]) -> str:
    """The decoder that a setting stands for where decoders compete: its curve, whatever a budget's reading or proxy."""
    common = {"reading": "cumulative", "proxy": "entropy"}
    return curve_of({**settings, **{key: value for key, value in common.items() if key in settings}})


def label_of(settings: Mapping[str, Any]) -> str:
    """A short name of one setting: its curve and where on it."""
    shown = [f"{symbol}={settings[key]:g}" for key, symbol in SYMBOLS.items() if key in settings]
    shown += [f"every {settings['every']}"] if settings.get("every", 1) > 1 else []
    return " ".join([curve_of(settings), *shown])
