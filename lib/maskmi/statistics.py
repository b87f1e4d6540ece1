"""The statistics file of a run: writing, merging, checking, and the README's results table that is generated from it.

The analyse notebook of each study writes ``statistics.<study>.json``, its arena notebook adds a section to it, and the
run merges these into ``statistics.json``. Both files have one form::

    {"schema": 1, "provenance": {...}, "studies": {name: {...}}}

What was not measured is absent.

Run as ``python -m maskmi.statistics README.md`` this rewrites the table between the README's markers.
"""

import argparse
import contextlib
import fcntl
import json
import math
import os
from pathlib import Path

import numpy as np

from maskmi import ROOT
from maskmi.artefacts import write_atomically

SCHEMA = 1
PROVENANCE = {"profile", "seed", "device", "dtype", "threads", "code_revision", "versions", "created"}
REQUIRED = {"backbone": {"name", "parameters", "sha256"}, "head": {"parameters", "sha256"}}
SECTIONS = {"backbone", "head", "probing", "structure", "decoding", "comparisons", "arena", "provenance"}
ARENA = {"reference", "caps", "decoding", "chosen", "provenance"}
CHOSEN = {"contender", "label", "n", "passes", "score"}
ROW = {"decoder", "settings", "n", "passes", "metrics"}
BEGIN, END = "<!-- results -->", "<!-- /results -->"
AS_PERCENT = {"solved", "valid", "recovery"}
#: In the statistics file, but not in the README's table.
DETAILS = {"jsd_1mer", "jsd_hidden", "jsd_2mer_entropy", "jsd_3mer_entropy", "jsd_2mer_random", "jsd_3mer_random"}
DETAILS |= {"identity", "low_complexity"}


def write_study(folder: str | Path, study: str, results: dict, provenance: dict) -> Path:
    """Check and write one study's results as ``statistics.<study>.json`` in ``folder``; the path.

    Raises:
        ValueError: naming the field, where something is missing, NaN, or outside its own interval.
    """
    own = {**results, "provenance": provenance}
    statistics = plain({"schema": SCHEMA, "provenance": provenance, "studies": {study: own}})
    path = Path(folder) / f"statistics.{study}.json"
    _write(path, statistics)
    return path


def write_arena(folder: str | Path, study: str, arena: dict, backbone: dict, provenance: dict) -> Path:
    """Check and put the arena's results into ``statistics.<study>.json``, beside what is there; the path.

    Where the file is not there yet, one is begun that holds nothing else. Writing a study's other results, by
    :func:`write_study`, begins it anew.

    Raises:
        ValueError: where the file is of another profile or backbone, or as of :func:`write_study`.
    """
    path = Path(folder) / f"statistics.{study}.json"
    if path.exists():
        statistics = load(path)
        held = statistics["studies"][study]
        for what, found, own in (
            ("profile", held["provenance"]["profile"], provenance["profile"]),
            ("backbone", held["backbone"]["sha256"], backbone["sha256"]),
        ):
            if found != own:
                raise ValueError(f"{path.name} is of {what} {found}, not {own}: choose another folder, or delete it")
    else:
        empty = {"backbone": backbone, "decoding": [], "provenance": provenance}
        statistics = {"schema": SCHEMA, "provenance": provenance, "studies": {study: empty}}
    statistics["studies"][study]["arena"] = {**arena, "provenance": provenance}
    _write(path, plain(statistics))
    return path


def merge(folder: str | Path, studies: list[str]) -> Path:
    """Put the named studies' own files into ``statistics.json`` in ``folder``, beside the studies already there.

    One process at a time does so: others that share the folder wait.

    Raises:
        ValueError: where the file holds results of another profile, which are not to be mixed.
    """
    with _alone_in(Path(folder)):
        return _merge(Path(folder), studies)


def _merge(folder: Path, studies: list[str]) -> Path:
    path = folder / "statistics.json"
    merged = load(path) if path.exists() else None
    for study in studies:
        own = load(folder / f"statistics.{study}.json")
        held = merged["studies"] if merged else {}
        profiles = {other["provenance"]["profile"] for name, other in held.items() if name not in studies}
        if profiles - {own["provenance"]["profile"]}:
            raise ValueError(
                f"{path.name} holds results of profile {', '.join(sorted(profiles))}, not "
                f"{own['provenance']['profile']!r}: choose another --output folder"
            )
        merged = {**own, "studies": {**held, **own["studies"]}}
    _write(path, merged)
    return path


@contextlib.contextmanager
def _alone_in(folder: Path):
    """Within, no other process that asks for this folder gets further; one that is killed lets go of it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def load(path: str | Path) -> dict:
    """Read and check a statistics file."""
    try:
        statistics = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{Path(path).name} is not JSON ({error}): run the study again") from error
    validate(statistics)
    return statistics


def validate(statistics: dict) -> None:
    """Hold a statistics object against the schema.

    Raises:
        ValueError: naming the first field at fault.
    """
    _has(statistics, {"schema", "provenance", "studies"}, "the file")
    if statistics["schema"] != SCHEMA:
        raise ValueError(f"schema {statistics['schema']!r} is unknown: this version reads {SCHEMA}")
    _has(statistics["provenance"], PROVENANCE, "provenance")
    _numbers(statistics, "")
    for name, study in statistics["studies"].items():
        where = f"studies.{name}"
        _has(study, {"backbone", "decoding", "provenance"}, where)
        if unknown := set(study) - SECTIONS:
            raise ValueError(f"{where} has an unknown section {min(unknown)!r}")
        _has(study["provenance"], PROVENANCE, f"{where}.provenance")
        for section, required in REQUIRED.items():
            if section in study:
                _has(study[section], required, f"{where}.{section}")
        for index, row in enumerate(study["decoding"]):
            _decoding_row(row, f"{where}.decoding[{index}]")
        if "arena" in study:
            _arena(study["arena"], f"{where}.arena")


def _arena(arena: dict, where: str) -> None:
    _has(arena, ARENA, where)
    _has(arena["provenance"], PROVENANCE, f"{where}.provenance")
    for index, row in enumerate(arena["decoding"]):
        _decoding_row(row, f"{where}.decoding[{index}]")
    for index, row in enumerate(arena["chosen"]):
        _has(row, CHOSEN, f"{where}.chosen[{index}]")
        _has(row["score"], {"value", "low", "high"}, f"{where}.chosen[{index}].score")


def _decoding_row(row: dict, where: str) -> None:
    _has(row, ROW, where)
    if not (isinstance(row["n"], int) and row["n"] > 0):
        raise ValueError(f"{where}.n must be a positive integer, not {row['n']!r}")
    if not row["metrics"]:
        raise ValueError(f"{where}.metrics is empty")
    for metric, interval in row["metrics"].items():
        _has(interval, {"value", "low", "high"}, f"{where}.metrics.{metric}")


def _has(mapping, required: set[str], where: str) -> None:
    if not isinstance(mapping, dict):
        raise ValueError(f"{where} must be an object, not {type(mapping).__name__}")
    if missing := required - set(mapping):
        raise ValueError(f"{where} lacks {', '.join(sorted(missing))}")


def _numbers(value, where: str) -> None:
    """Every number is finite and every interval holds its value."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}: leave out what was not measured")
    if value is None:
        raise ValueError(f"{where} is null: leave out what was not measured")
    if isinstance(value, dict):
        for key, item in value.items():
            _numbers(item, f"{where}.{key}".lstrip("."))
        if {"value", "low", "high"} <= set(value) and not value["low"] <= value["value"] <= value["high"]:
            raise ValueError(f"{where}: {value['value']} lies outside its interval {value['low']} to {value['high']}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _numbers(item, f"{where}[{index}]")


def plain(value):
    """The same with numpy numbers and arrays, tuples and named tuples made into what JSON knows."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _write(path: Path, statistics: dict) -> None:
    validate(statistics)
    write_atomically(path, (json.dumps(statistics, indent=1, allow_nan=False) + "\n").encode())


def results_table(statistics: dict) -> str:
    """The README's results as Markdown: for each study a line on its models and a table of decoders.

    A study's table shows the rows that carry ``"headline": true``, or all where none does. A row's ``"paper"`` (an
    object with ``passes`` and a metric's value) is shown beside it.
    """
    made = statistics["provenance"]
    parts = [
        f"Profile `{made['profile']}`, seed {made['seed']}, {made['device']}, {made['dtype']}, {made['threads']} "
        f"threads, code {made['code_revision']}. Brackets are 95 % intervals."
    ]
    for name, study in statistics["studies"].items():
        parts += [f"### {name}", _models(study) + _revision(study, made), _decoding_table(study["decoding"])]
    return "\n\n".join(part for part in parts if part)


def _models(study: dict) -> str:
    backbone, head = study["backbone"], study.get("head", {})
    text = f"Backbone `{backbone['name']}`, {backbone['parameters']:,} parameters."
    if head:
        names = {"r2": "R²", "pearson": "Pearson", "spearman": "Spearman", "mae_nats": "mean absolute error (nats)"}
        scores = ", ".join(f"{label} {head[key]:.3f}" for key, label in names.items() if key in head)
        text += f" Head, {head['parameters']:,} parameters" + (f": held-out {scores}." if scores else ".")
    return text


def _revision(study: dict, made: dict) -> str:
    """A sentence on a study that other code made than the rest, or in another number format."""
    own = study["provenance"]
    said = [f"by code {own['code_revision']}"] if own["code_revision"] != made["code_revision"] else []
    said += [f"in {own['dtype']}"] if own["dtype"] != made["dtype"] else []
    return f" Made {' '.join(said)}." if said else ""


def _decoding_table(rows: list[dict]) -> str:
    rows = [row for row in rows if row.get("headline")] or rows
    if not rows:
        return ""
    metrics = list(dict.fromkeys(metric for row in rows for metric in row["metrics"] if metric not in DETAILS))
    timed = any("seconds_per_sequence" in row for row in rows)
    paper = any("paper" in row for row in rows)
    sets = any("test_set" in row for row in rows)
    titles = [f"{metric} %" if metric in AS_PERCENT else metric for metric in metrics]
    header = (
        ["set"] * sets + ["decoder", "settings", "n", "passes", *titles] + ["s / sequence"] * timed + ["paper"] * paper
    )
    left = 2 + sets
    lines = [header, ["---"] * left + ["---:"] * (len(header) - left)]
    for row in rows:
        cells = [row.get("test_set", "")] * sets
        cells += [row["decoder"], _settings(row["settings"]), f"{row['n']:,}", f"{row['passes']:.1f}"]
        cells += [_interval(metric, row["metrics"].get(metric)) for metric in metrics]
        cells += [f"{row['seconds_per_sequence']:.4f}" if "seconds_per_sequence" in row else ""] * timed
        cells += [_paper(row.get("paper", {}))] * paper
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _settings(settings: dict) -> str:
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in settings.items()
    )


def _number(metric: str, value: float) -> str:
    return f"{100 * value:.1f}" if metric in AS_PERCENT else f"{value:.3f}"


def _interval(metric: str, interval: dict | None) -> str:
    if interval is None:
        return ""
    if interval["low"] == interval["high"]:  # a number or a distance, which has no interval
        value = interval["value"]
        return f"{value:.0f}" if value == int(value) and metric not in AS_PERCENT else _number(metric, value)
    value, low, high = (_number(metric, interval[key]) for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _paper(paper: dict) -> str:
    shown = [f"{paper['passes']:.1f} passes"] if "passes" in paper else []
    shown += [
        f"{_number(key, value)} {'% ' * (key in AS_PERCENT)}{key}" for key, value in paper.items() if key != "passes"
    ]
    return ", ".join(shown)


def replace_block(text: str, table: str) -> str:
    """``text`` with ``table`` between the two markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the text must hold {BEGIN} and {END} once each, in this order")
    return text[: text.index(BEGIN) + len(BEGIN)] + f"\n\n{table}\n\n" + text[text.index(END) :]


def main() -> None:
    parser = argparse.ArgumentParser(description="Rewrite the results table of a README from a statistics file.")
    parser.add_argument("readme", type=Path)
    parser.add_argument("--statistics", type=Path, default=ROOT / "figures" / "statistics.json")
    options = parser.parse_args()
    text = options.readme.read_text(encoding="utf-8")
    options.readme.write_text(replace_block(text, results_table(load(options.statistics))), encoding="utf-8")


if __name__ == "__main__":
    main()
