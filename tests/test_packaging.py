import re
import tomllib
from importlib.metadata import distribution

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from maskmi import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def locked(name: str) -> dict[str, str]:
    """Names and versions of a lock file, every line of which must be name==version."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", line) for line in lines), "a lock names packages, no hosts"
    return dict(line.split("==") for line in lines)


def test_lock_holds_exactly_what_the_list_needs():
    lock = locked("requirements.lock")
    needed, waiting = set(), [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name.startswith(("nvidia-", "cuda-", "triton")):
            continue  # what builds of torch for accelerators bring along
        assert name in lock, f"{name} is not in requirements.lock"
        assert requirement.specifier.contains(lock[name]), f"{requirement} does not allow {lock[name]}"
        if (name, *sorted(requirement.extras)) in needed:
            continue
        needed.add((name, *sorted(requirement.extras)))
        for text in distribution(name).requires or []:
            inner = Requirement(text)
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": extra}) for extra in ["", *requirement.extras]
            ):
                waiting.append(inner)
    assert set(lock) == {name for name, *_ in needed}


def test_tests_run_in_the_locked_versions():
    lock = locked("requirements.lock")
    found = {name: distribution(name).version.split("+")[0] for name in lock}
    assert found == lock


def test_any_patch_release_of_the_python_will_do():  # Debian 12 has 3.11.2
    asked = {name: distribution(name).metadata.get("Requires-Python") or "" for name in locked("requirements.lock")}
    assert [name for name, text in asked.items() if not SpecifierSet(text).contains("3.11.0")] == []


def test_packages_without_dependencies_are_locked_apart():
    apart = locked("requirements-no-deps.lock")
    assert sorted(apart) == sorted(PROJECT["tool"]["maskmi"]["no-deps"])
    assert not set(apart) & set(locked("requirements.lock"))


def test_an_installed_package_has_its_data_files():
    folder = ROOT / "lib" / "maskmi"
    files = [path for path in folder.rglob("*.*") if path.suffix != ".py" and path.parent.name != "__pycache__"]
    data = {str(path.relative_to(folder)) for path in files}
    assert data == set(PROJECT["tool"]["setuptools"]["package-data"]["maskmi"])


def test_conda_installs_the_lock_by_pip_alone():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, by_pip = environment["dependencies"]
    assert conda == ["python=3.11", "pip"]
    assert by_pip == {"pip": ["-r requirements.lock", "-e ."]}
    assert Requirement("python" + PROJECT["project"]["requires-python"]).specifier.contains("3.11.0")


@pytest.mark.parametrize("name", ["run_all.sh", ".ci/run"])
def test_scripts_are_executable(name):
    assert (ROOT / name).stat().st_mode & 0o111


def test_citation_names_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (paper,) = citation["references"]
    assert paper["identifiers"][0]["value"] == "arXiv:2605.20187"
    assert [author["family-names"] for author in paper["authors"]] == ["Sharma", "Wang", "Li"]
