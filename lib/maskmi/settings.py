"""Settings of decoders: a decoder and the description that tells it from others, with its names in figures."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from maskmi.decoding import Decision, EntropyBounded, MIGuided, View

Setting = tuple[dict[str, Any], Callable[[View], Decision]]
#: Part of a matrix's name: the family that such a decoder is drawn as.
FAMILIES = {
    "tv": "tv_guided",
    "jacobian": "jacobian_guided",
    "attention": "attention_guided",
    "probed": "mi_oracle",
}
MAIN_MATRICES = ("head", "head: tv", "attention", "probed", "probed: jacobian")


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
    decoder = MIGuided(budget, lam=lam, pairwise=source if lam else None, alpha=alpha, reading=reading, order=order)
    return {"decoder": "mi_guided", **settings}, decoder


def entropy_bounded_setting(budget: float, proxy: str = "entropy") -> Setting:
    """Entropy-bounded decoding with its description."""
    settings = {"decoder": "entropy_bounded", "budget": budget, "proxy": proxy}
    return settings, EntropyBounded(budget, proxy)


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
    """Name of the curve that a setting lies on: all but the parameter that trades passes for quality."""
    if settings["decoder"] == "entropy_bounded":
        return "EB" if settings["proxy"] == "entropy" else f"EB by {settings['proxy']}"
    if settings["decoder"] != "mi_guided":
        return settings["decoder"].replace("_", " ")
    if settings["lam"] == 0:
        return "entropy only (λ=0)"
    name = f"MI ({settings['matrix']})"
    name += "" if settings["lam"] == 1 else f" λ={settings['lam']:g}"
    name += "" if settings["alpha"] == 1 else f" α={settings['alpha']:g}"
    name += " least cost" if settings["order"] == "least_cost" else ""
    return name + (" threshold" if settings["reading"] == "threshold" else "")


def label_of(settings: Mapping[str, Any]) -> str:
    """A short name of one setting: its curve and where on it."""
    for key, symbol in {"k": "k", "budget": "γ", "threshold": "τ", "factor": "f"}.items():
        if key in settings:
            return f"{curve_of(settings)} {symbol}={settings[key]:g}"
    return curve_of(settings)
