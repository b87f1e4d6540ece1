"""What the tests of executed notebooks share."""

from pathlib import Path

import nbformat
import pytest
from PIL import Image

from maskmi import run


def cells(path: Path, kind: str = "code") -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def smoke_run(output: Path, study: str) -> Path:
    """A whole study by the command line's own entry, into ``output``, which it returns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASKMI_PROFILE", "smoke")
        assert run.main(["--profile", "smoke", "--study", study, "--output", str(output), "--fresh"]) == 0
    return output


def blank_figures(folder: Path) -> list[str]:
    """Names of the pictures that show nothing, or next to nothing."""
    found = []
    for path in folder.glob("*.png"):
        with Image.open(path) as image:
            low, high = image.convert("L").getextrema()
            if min(image.size) <= 200 or high - low <= 100:
                found.append(path.name)
    return found
