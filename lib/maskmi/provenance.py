"""Where a result comes from: what a statistics file says of the run that made it. No host names and no paths."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import torch

from maskmi import ROOT, __version__

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "numba", "papermill")
# What decides a result beside data and checkpoints, which are known by their SHA-256. Figures are a product, so
# that the first study of a run does not make the second one's revision "dirty".
CODE = ("lib", "notebooks", "profiles", "run_all.sh", "requirements.lock")


def provenance(seed: int, device: str | torch.device = "cpu", dtype: str | torch.dtype = "float32") -> dict:
    """The provenance fields of a statistics file. The profile's name comes from the run (``MASKMI_PROFILE``)."""
    return {
        "profile": os.environ.get("MASKMI_PROFILE", "notebook"),
        "seed": int(seed),
        "device": str(device),
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "code_revision": code_revision(),
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def code_revision() -> str:
    """The git commit, with ``-dirty`` where the code differs from it, or ``unknown`` outside a git checkout."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", *CODE)
    if not commit or changes is None:
        return "unknown"
    return commit[:12] + ("-dirty" if changes else "")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "maskmi": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
