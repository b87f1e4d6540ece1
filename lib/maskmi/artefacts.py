"""Results on disk that are made once: keyed by what they came from, written atomically, verified when read.

A key is the SHA-256 of a name, the parameters, the inputs and the code, so that a changed parameter, data set or helper
never meets an old result. A file appears under its final name only when complete.
"""

import ast
import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from maskmi import __version__


def sha256(path: Path | str) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tensor_sha256(tensors: Tensor | Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes of tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(({"": tensors} if isinstance(tensors, Tensor) else tensors).items()):
        tensor = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def code_digest(*modules: str) -> str:
    """SHA-256 of the named modules' code and, transitively, of the modules they import from the same top-level package.

    Comments, docstrings and layout don't count, nor do imports under ``if TYPE_CHECKING``.
    """
    sources: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ValueError(f"there is no module {name!r} whose code could be digested")
        if spec.origin is None or not spec.origin.endswith(".py"):
            continue  # a package without code of its own
        tree = _Essence().visit(ast.parse(Path(spec.origin).read_bytes()))
        sources[name] = ast.unparse(tree)
        package = name if spec.submodule_search_locations else name.rpartition(".")[0]
        waiting += [found for found in _imports(tree, package) if found.split(".")[0] == name.split(".")[0]]
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()


class _Essence(ast.NodeTransformer):
    """Drops docstrings and blocks that only type checkers read."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        is_scope = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_scope and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return super().generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        only_typing = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return ast.Pass() if only_typing else self.generic_visit(node)


def _imports(tree: ast.AST, package: str) -> Iterable[str]:
    """Full names of all modules that the code may import; ``from a import b`` may name a module ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield module
            if module.split(".")[0] == package.split(".")[0]:
                for alias in node.names:
                    with contextlib.suppress(ModuleNotFoundError):  # `module` is no package: b is a name in it
                        if importlib.util.find_spec(f"{module}.{alias.name}"):
                            yield f"{module}.{alias.name}"


def write_atomically(path: Path | str, data: bytes) -> None:
    """Write a file so that it is either complete or not there, also when the process or the machine dies.

    Raises:
        OSError: when the disk is full, naming the folder; nothing is left behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's files are private
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"no space left in {path.parent} for {path.name} ({len(data):,} bytes): free some and start again"
            raise OSError(error.errno, message) from error
        raise


class Artefacts:
    """A folder of results. ``get_or_make`` is all that most callers need."""

    def __init__(self, root: Path | str):
        self.root = Path(root)

    def key(
        self,
        name: str,
        parameters: Mapping[str, Any],
        inputs: Mapping[str, str | Tensor] = {},
        code: Iterable[str] = (),
    ) -> str:
        """``name-digest`` of all that a result depends on.

        Args:
            parameters: JSON values.
            inputs: SHA-256 by name, or tensors, which are hashed.
            code: names of the modules that make the result; see ``code_digest``.

        Raises:
            ValueError: when a parameter is no JSON value.
        """
        return _key(_origin(name, parameters, inputs, code))

    def get_or_make(
        self,
        name: str,
        make: Callable[[], Any],
        *,
        parameters: Mapping[str, Any],
        inputs: Mapping[str, str | Tensor] = {},
        code: Iterable[str] = (),
    ) -> Any:
        """The stored result of ``make()``, which is called only when no sound copy is on disk.

        ``make`` returns a dictionary of tensors (kept as safetensors) or any JSON value. The file's metadata say what
        made it (see ``describe``). A damaged file is reported by a warning and made again.
        """
        origin = _origin(name, parameters, inputs, code)
        key = _key(origin)
        for path, read in ((self.root / f"{key}.safetensors", _read_tensors), (self.root / f"{key}.json", _read_json)):
            if path.exists():
                try:
                    return read(path)[0]
                except ValueError as error:
                    warnings.warn(f"{path} is damaged ({error}) and is made again", stacklevel=2)
        content = make()
        metadata = origin | {"versions": _versions(), "made": datetime.now(UTC).isoformat(timespec="seconds")}
        if isinstance(content, dict) and content and all(isinstance(value, Tensor) for value in content.values()):
            content = _own_memory(content)
            write_atomically(self.root / f"{key}.safetensors", _tensor_bytes(content, metadata))
        else:
            document = {"sha256": hashlib.sha256(_canonical(content).encode()).hexdigest()}
            document |= {"metadata": metadata, "content": content}
            write_atomically(self.root / f"{key}.json", (json.dumps(document, indent=1) + "\n").encode())
            content = json.loads(_canonical(content))  # what a second call would return: tuples become lists
        return content

    def describe(self, key: str) -> dict:
        """Metadata of a stored result: name, parameters, inputs, code digest, versions, time.

        Raises:
            FileNotFoundError: when there is none.
            ValueError: when it is damaged.
        """
        for path, read in ((self.root / f"{key}.safetensors", _read_tensors), (self.root / f"{key}.json", _read_json)):
            if path.exists():
                return read(path)[1]
        raise FileNotFoundError(f"there is no result {key} in {self.root}")


def save_checkpoint(path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write weights and JSON metadata as one safetensors file, atomically. ``SHA256SUMS`` stays as it is."""
    write_atomically(path, _tensor_bytes(_own_memory(tensors), dict(metadata)))


def load_checkpoint(
    path: Path | str, expected_sha256: str | None = None, made_by: str = "./run_all.sh --profile full"
) -> tuple[dict[str, Tensor], dict]:
    """Weights and metadata of a checkpoint, verified against ``expected_sha256`` or the ``SHA256SUMS`` beside it.

    Raises:
        FileNotFoundError: when it is missing; says which command makes it.
        ValueError: when it is a folder, was cut or altered; names the file, its checksum and the expected one.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file of the checkpoint")
    if not path.is_file():
        raise FileNotFoundError(
            f"checkpoint {path} is missing: `{made_by}` makes it, and checkpoints/README.md tells how to ship it"
        )
    expected = expected_sha256 or _listed_sha256(path)
    found = sha256(path)
    if expected and found != expected.lower():
        raise ValueError(f"checkpoint {path} was cut or altered: its SHA-256 is {found}, expected {expected}")
    try:
        return _read_tensors(path)
    except ValueError as error:
        known = f"expected {expected}" if expected else "no expected one is known"
        raise ValueError(f"checkpoint {path} can't be read ({error}); its SHA-256 is {found}, {known}") from error


def _listed_sha256(path: Path) -> str | None:
    listing = path.parent / "SHA256SUMS"
    if listing.is_file():
        for line in listing.read_text().splitlines():
            digest, _, name = line.strip().partition(" ")
            if name.strip().lstrip("*") == path.name:
                return digest
    return None


def _origin(name: str, parameters: Mapping, inputs: Mapping[str, str | Tensor], code: Iterable[str]) -> dict:
    hashes = {k: tensor_sha256(v) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    return {"name": name, "parameters": dict(parameters), "inputs": hashes, "code": code_digest(*code)}


def _key(origin: Mapping) -> str:
    return f"{origin['name']}-{hashlib.sha256(_canonical(origin).encode()).hexdigest()[:24]}"


def _own_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU: safetensors refuses tensors that share memory."""
    return {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}


def _versions() -> dict[str, str]:
    return {"torch": torch.__version__, "numpy": np.__version__, "maskmi": __version__}


def _canonical(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"only finite JSON values can be kept or make a key: {error}") from error


def _tensor_bytes(tensors: dict[str, Tensor], metadata: dict) -> bytes:
    header = {"metadata": _canonical(metadata), "sha256": tensor_sha256(tensors)}
    return safetensors.torch.save(tensors, header)


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], dict]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except safetensors.SafetensorError as error:
        raise ValueError(f"not a complete safetensors file: {error}") from error
    if header.get("sha256", "") != tensor_sha256(tensors):
        raise ValueError("its tensors don't match the checksum in its header")
    return tensors, json.loads(header["metadata"])


def _read_json(path: Path) -> tuple[Any, dict]:
    try:
        document = json.loads(path.read_bytes())
        content, metadata, expected = document["content"], document["metadata"], document["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"not a complete JSON result: {error}") from error
    if hashlib.sha256(_canonical(content).encode()).hexdigest() != expected:
        raise ValueError("its content doesn't match its checksum")
    return content, metadata
