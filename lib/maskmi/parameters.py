"""Checks of a notebook's parameters: unknown names are refused (papermill only warns) and types are held.

Called in the cell after the one tagged ``parameters``, behind which papermill injects its own::

    p = check_parameters(globals(), study=["sudoku", "sudoku_paper_strength"], seed=int, n_puzzles=(int, 1, None))

This module needs the standard library only: run_all.sh reads its options with it before the environment exists.
"""

import ast
import difflib
import math
import types
import typing
import warnings
from pathlib import Path
from types import SimpleNamespace

from maskmi import ROOT

INJECTED = "# Parameters"  # how papermill begins the cell that it injects


def did_you_mean(name: str, known) -> str:
    """``; did you mean 'x'?`` for the nearest known name, or a list of all where none is near."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known) or 'none'}"


def check_parameters(namespace: dict, **expected) -> SimpleNamespace:
    """Check the parameters in a notebook's ``globals()`` and return them as attributes.

    Args:
        namespace: ``globals()`` of the notebook, or any dict of parameters.
        expected: for each parameter a type (``int``, ``int | None``, ``list[float]``), a list of the choices, or
            ``(type, low, high)`` with inclusive bounds, ``None`` for an open one. An int passes for a float and is made
            one; a bool is no int.

    Raises:
        ValueError: on an unknown parameter (with the nearest known name), a missing one, a wrong type, a NaN or
            infinite number, or a value that is out of range.

    Warns:
        UserWarning: where the notebook lies in another copy of the study than the library, whose checkpoints, data and
            folders it would use.
    """
    here = Path.cwd()
    copy = next((path for path in (here, *here.parents) if (path / "lib" / "maskmi" / "__init__.py").exists()), ROOT)
    if copy.resolve() != ROOT:
        warnings.warn(
            f"this notebook runs in {copy}, but imports maskmi from {ROOT}, and reads and writes there: activate the "
            f"environment of {copy}, or set PYTHONPATH={copy / 'lib'}",
            stacklevel=2,
        )
    for name in _given_names(namespace, expected):
        if name not in expected:
            raise ValueError(f"unknown parameter {name!r}{did_you_mean(name, expected)}")
    missing = [name for name in expected if name not in namespace]
    if missing:
        raise ValueError(f"parameter {missing[0]!r} is not set: give it a default in the cell tagged `parameters`")
    return SimpleNamespace(**{name: _checked(name, namespace[name], kind) for name, kind in expected.items()})


def _given_names(namespace: dict, expected: dict) -> list[str]:
    """The names that were set as parameters.

    In a notebook the source of its latest parameters cell and of the injected cell behind that one tell, not the
    namespace: this holds when cells are run again after later ones have made other variables, and whatever was imported
    before. Outside IPython every public name of the namespace counts.
    """
    history = namespace.get("In")
    if not isinstance(history, list):
        return [name for name in namespace if not name.startswith("_")]
    names = []
    for source in reversed(history[:-1]):  # the last entry is the cell that is calling
        assigned = _assigned_names(source)
        if source.lstrip().startswith(INJECTED):
            names = names or assigned or []
        elif assigned and any(name in expected for name in assigned):
            return names + assigned
    return names


def _assigned_names(source: str) -> list[str] | None:
    """Names that a cell assigns, or None where the cell holds anything beside plain assignments."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return None
    names = []
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            return None
        if not all(isinstance(target, ast.Name) for target in targets):
            return None
        names += [target.id for target in targets]
    return [name for name in names if not name.startswith(("_", "PAPERMILL_"))]


def _checked(name: str, value, kind):
    if isinstance(kind, list):
        # `True == 1`, so types are compared as well.
        if not any(value == choice and type(value) is type(choice) for choice in kind):
            near = did_you_mean(value, kind) if isinstance(value, str) else f"; choose one of {kind}"
            raise ValueError(f"parameter {name!r} cannot be {value!r}{near}")
        return value
    kind, low, high = kind if isinstance(kind, tuple) else (kind, None, None)
    if not _fits(value, kind):
        shown = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
        raise ValueError(
            f"parameter {name!r} must be {shown}, not {value!r} ({type(value).__name__}){_hint(value, kind)}"
        )
    for number in value if isinstance(value, list) else [] if value is None else [value]:
        if (low is not None and number < low) or (high is not None and number > high):
            bounds = (
                f"at least {low}" if high is None else f"at most {high}" if low is None else f"from {low} to {high}"
            )
            raise ValueError(f"parameter {name!r} must be {bounds}, not {number!r}")
    return _as_float(value, kind)


def _fits(value, kind) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        (element,) = typing.get_args(kind)
        return isinstance(value, list) and all(_fits(item, element) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _as_float(value, kind):
    """Integers given for floats become floats, so that 1 and 1.0 name the same artefact."""
    if typing.get_origin(kind) is list and typing.get_args(kind)[0] is float:
        return [float(item) for item in value]
    takes_float = kind is float or (
        isinstance(kind, types.UnionType) and {float, int} & set(typing.get_args(kind)) == {float}
    )
    return float(value) if takes_float and isinstance(value, int) and not isinstance(value, bool) else value


def _hint(value, kind) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return ": papermill's -p reads NAN and INF as numbers; quote text in a YAML file, passed by -f"
    if kind is str and isinstance(value, int | float):
        return ": papermill's -p turns text such as 0030 into a number; quote it in a YAML file, passed by -f"
    if isinstance(value, str) and kind is not str:
        return ": papermill's -p passes what it cannot read as text; write it in a YAML file, passed by -f"
    return ""
