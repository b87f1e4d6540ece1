"""What several tests share: small notebooks, and an environment in which kernels and headless figures work."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
THREADS = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count() or 1)

# Kernels and run_all.sh are processes of their own: they find the package and draw without a screen as well.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "lib"), os.environ.get("PYTHONPATH")]))
os.environ["MPLBACKEND"] = "Agg"
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach for the network
torch.set_num_threads(int(THREADS))


@pytest.fixture
def make_notebook():
    """``make_notebook(path, "x = 1", "print(x)")``: a notebook whose first cell is tagged ``parameters``."""

    def make(path: Path, parameters: str, *cells: str) -> Path:
        first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
        rest = [
            nbformat.v4.new_markdown_cell(cell) if cell.startswith("#") else nbformat.v4.new_code_cell(cell)
            for cell in cells
        ]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(cells=[first, *rest], metadata={"kernelspec": kernel})
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        return path

    return make


@pytest.fixture
def own_environment() -> dict[str, str]:
    """Environment variables under which run_all.sh takes the environment of these tests as the active one."""
    kept = {key: value for key, value in os.environ.items() if key not in ("CONDA_PREFIX", "PYTHONPATH")}
    return {**kept, "VIRTUAL_ENV": sys.prefix, "OMP_NUM_THREADS": THREADS}
