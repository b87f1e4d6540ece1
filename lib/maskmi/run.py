"""Runs studies: the numbered notebooks of each in their order, by papermill, at the sizes of a profile.

A profile is a YAML file (profiles/quick.yaml, profiles/full.yaml, tests/smoke.yaml)::

    studies: [sudoku]             # what --study defaults to
    sudoku:
      time_limit_minutes: 15      # for each notebook, or a mapping {notebook: minutes, default: minutes}
      common: {seed: 0}           # for every notebook that has the parameter
      1_probe: {n_contexts: 200}  # for this notebook alone

A study that a profile says nothing of runs with its notebooks' own values. The run itself sets ``study``, ``output``
(the folder of figures and statistics) and ``artefacts`` (the folder of expensive results) in the notebooks that have
these parameters.
"""

# papermill and yaml are imported where they are used: run_all.sh reads its options here before the environment exists.
import argparse
import contextlib
import fcntl
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from maskmi import ROOT
from maskmi.parameters import did_you_mean

PROFILES = {
    "quick": ROOT / "profiles" / "quick.yaml",
    "full": ROOT / "profiles" / "full.yaml",
    "smoke": ROOT / "tests" / "smoke.yaml",
}
STUDIES = {  # and the folder of its notebooks
    "sudoku": "notebooks",
    "sudoku_paper_strength": "notebooks",
    "esmc_small": "notebooks/protein",
    "antiberty": "notebooks/protein",
    "esmc_300m": "notebooks/protein",
}
BROUGHT = {"esmc_300m"}  # need weights that are not in the repository: run where named, not by "all"
TUTORIALS = {"6_your_own_model"}  # notebooks beside a study's that are no step of it: run by hand
SET_BY_RUN = {"study", "output", "artefacts"}
DEFAULT_MINUTES = 60


class StudyFailed(Exception):
    """A notebook failed; the message says which, where, and with what last lines."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        sys.exit(f"run_all.sh: {message}\nSee run_all.sh --help.")


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """The command line's options; exits with one sentence, naming the nearest, on an unknown one."""
    parser = _Parser(prog="run_all.sh", description="Run the study's notebooks in order.", allow_abbrev=False)
    parser.add_argument("--profile", default="quick", help=f"one of {', '.join(PROFILES)} (default: quick)")
    parser.add_argument(
        "--study",
        help=f"one of {', '.join(STUDIES)}, or all but {', '.join(BROUGHT)} by 'all' (default: what the profile says)",
    )
    parser.add_argument("--output", type=Path, help="folder of figures and statistics.json")
    parser.add_argument("--fresh", action="store_true", help="forget this profile's artefacts of earlier runs")
    parser.add_argument("--threads", type=int, help="processor threads (default: all)")
    parser.add_argument("--check-options", action="store_true", help=argparse.SUPPRESS)
    options, unknown = parser.parse_known_args(arguments)
    known = ["--profile", "--study", "--output", "--fresh", "--threads", "--help", "test"]
    if unknown:
        parser.error(f"unknown option {unknown[0]!r}{did_you_mean(unknown[0].split('=')[0], known)}")
    for name, choices in {"profile": list(PROFILES), "study": [*STUDIES, "all"]}.items():
        value = getattr(options, name)
        if value is not None and value not in choices:
            parser.error(f"--{name} cannot be {value!r}{did_you_mean(value, choices)}")
    if options.threads is not None and options.threads < 1:
        parser.error(f"--threads must be at least 1, not {options.threads}")
    if options.output is None:
        figures = ROOT if options.profile == "full" else ROOT / "runs" / options.profile
        options.output = figures / "figures"
    options.output = options.output.resolve()
    if options.output.exists() and not options.output.is_dir():
        parser.error(f"--output {options.output} is a file, not a folder")
    if options.profile != "full" and options.output == ROOT / "figures":
        parser.error(f"figures/ holds the full results: give profile {options.profile} another --output")
    return options


def find_notebooks(folder: Path) -> list[Path]:
    """The numbered notebooks in their order, without tutorials.

    Raises:
        ValueError: where the folder has none.
    """
    found = [path for path in folder.glob("[0-9]*_*.ipynb") if path.stem not in TUTORIALS]
    notebooks = sorted(found, key=lambda path: (int(path.stem.split("_")[0]), path.stem))
    if not notebooks:
        raise ValueError(f"no notebook named like 0_name.ipynb lies in {folder}")
    return notebooks


def load_profile(path: Path, notebooks: dict[str, list[Path]]) -> dict:
    """Read a profile and hold it against the parameters of each study's notebooks.

    Returns:
        ``{"studies": [...], study: {"parameters": {notebook: {name: value}}, "limits": {notebook: seconds},
        "accepted": {notebook: set of the names it has}}, …}``

    Raises:
        ValueError: on an unknown notebook, study or parameter (with the nearest known name), or a bad time limit.
    """
    import yaml

    profile = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for key in profile:
        if key not in ["studies", *notebooks]:
            raise ValueError(f"{path.name}: unknown entry {key!r}{did_you_mean(key, ['studies', *notebooks])}")
    studies = profile.get("studies", list(notebooks))
    for study in studies:
        if study not in notebooks:
            raise ValueError(f"{path.name}: unknown study {study!r}{did_you_mean(study, notebooks)}")
    accepted: dict[Path, set[str]] = {}
    sections = {
        study: _section(profile.get(study) or {}, own, accepted, f"{path.name}: {study}")
        for study, own in notebooks.items()
    }
    return {"studies": studies, **sections}


def _section(given: dict, notebooks: list[Path], accepted: dict[Path, set[str]], where: str) -> dict:
    """What a profile says of one study; ``accepted`` keeps what was found out of each notebook."""
    import papermill

    names = [notebook.stem for notebook in notebooks]
    for key in given:
        known = [*names, "time_limit_minutes", "common"]
        if key not in known:
            raise ValueError(f"{where}: unknown entry {key!r}{did_you_mean(key, known)}")
    for notebook in notebooks:
        if notebook not in accepted:
            accepted[notebook] = set(papermill.inspect_notebook(str(notebook)))
    has = {notebook.stem: accepted[notebook] for notebook in notebooks}
    common = given.get("common") or {}
    _refuse_unknown(common, set().union(*has.values()), f"{where}: common")
    parameters = {}
    for name in names:
        own = given.get(name) or {}
        _refuse_unknown(own, has[name], f"{where}: {name}")
        parameters[name] = {key: value for key, value in common.items() if key in has[name]} | own
    limits = _limits(given.get("time_limit_minutes", DEFAULT_MINUTES), names, where)
    return {"parameters": parameters, "limits": limits, "accepted": has}


def _refuse_unknown(given: dict, accepted: set[str], where: str) -> None:
    for name in given:
        if name in SET_BY_RUN:
            raise ValueError(f"{where} sets {name!r}, which the run sets itself")
        if name not in accepted:
            raise ValueError(f"{where} sets an unknown parameter {name!r}{did_you_mean(name, accepted - SET_BY_RUN)}")


def _limits(minutes, names: list[str], where: str) -> dict[str, float]:
    given = minutes if isinstance(minutes, dict) else {"default": minutes}
    for name, value in given.items():
        if name not in [*names, "default"]:
            raise ValueError(f"{where}: a time limit for an unknown notebook {name!r}{did_you_mean(name, names)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"{where}: the time limit of {name} must be a positive number of minutes, not {value!r}")
    return {name: 60.0 * given.get(name, given.get("default", DEFAULT_MINUTES)) for name in names}


def execute(notebook: Path, executed: Path, parameters: dict, limit: float, label: str = "") -> None:
    """Execute one notebook with this interpreter's kernel, from the study's folder, showing each cell as it starts.

    Args:
        notebook: the source, left as it is.
        executed: where the copy with outputs goes, also when a cell fails.
        limit: seconds for the whole notebook.
        label: stands before each line of progress.

    Raises:
        StudyFailed: where a cell fails, the kernel dies, or the time is over.
    """
    import nbformat
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    executed.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    total = len(nbformat.read(notebook, as_version=4).cells) + 1  # papermill injects a cell
    place = {"cell": "no cell", "heading": ""}

    def show_cell(cell, cell_index):
        if cell.cell_type != "code":
            headings = re.findall(r"^#+ *(.+)$", cell.source, flags=re.MULTILINE)
            place["heading"] = headings[-1] if headings else place["heading"]
            return
        place["cell"] = f"cell {cell_index + 1} of {total}"
        print(f"{label}{notebook.stem}  {_clock(began)}  {place['cell']}  {place['heading']}", flush=True)

    def remaining(cell):
        return max(1, round(began + limit - time.monotonic()))

    where = f"copy with outputs: {_shown(executed)}"
    with _own_kernel():
        try:
            papermill.execute_notebook(
                str(notebook),
                str(executed),
                parameters,
                kernel_name="python3",
                cwd=str(ROOT),
                progress_bar=False,
                stdout_file=sys.stdout,
                stderr_file=sys.stderr,
                start_timeout=120,
                on_cell_start=show_cell,
                timeout_func=remaining,
            )
        except PapermillExecutionError as error:
            lines = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback)).splitlines()
            last = "\n".join(f"    {line}" for line in lines[-12:])
            raise StudyFailed(
                f"{notebook.stem} failed in {place['cell']} ({place['heading']}): {error.ename}: {error.evalue}\n"
                f"{last}\n    {where}"
            ) from error
        except DeadKernelError as error:
            raise StudyFailed(
                f"{notebook.stem}: the kernel died in {place['cell']} ({place['heading']}), as it does when memory "
                f"runs out\n    {where}"
            ) from error
        except CellTimeoutError as error:
            raise StudyFailed(
                f"{notebook.stem} passed its limit of {limit / 60:g} minutes in {place['cell']} ({place['heading']}): "
                f"raise time_limit_minutes in the profile\n    {where}"
            ) from error
    print(f"{label}{notebook.stem}  {_clock(began)}  done", flush=True)


@contextlib.contextmanager
def _own_kernel():
    """Within, ``python3`` is the kernel of this interpreter, whatever a user has registered under that name."""
    from ipykernel.kernelspec import write_kernel_spec

    before = os.environ.get("JUPYTER_PATH")
    with tempfile.TemporaryDirectory() as folder:
        # At its usual level a kernel warns at every start that other processes of this machine could listen to it.
        write_kernel_spec(Path(folder) / "kernels" / "python3", extra_arguments=["--log-level=ERROR"])
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [folder, before]))  # searched first
        try:
            yield
        finally:
            os.environ.pop("JUPYTER_PATH")
            if before is not None:
                os.environ["JUPYTER_PATH"] = before


def run_study(study: str, notebooks: list[Path], profile: dict, folder: Path, output: Path) -> None:
    """Execute the notebooks for one study and check that they left figures and statistics.

    Args:
        profile: what the profile says of this study, of :func:`load_profile`.
        folder: takes ``executed/<study>`` and ``artefacts/<study>``.
        output: takes the figures and ``statistics.<study>.json``.

    Raises:
        StudyFailed: where a notebook fails, or all succeed but the statistics or figures were not written.
    """
    output.mkdir(parents=True, exist_ok=True)
    began = time.time_ns()
    own = {"study": study, "output": str(output), "artefacts": str(folder / "artefacts" / study)}
    for index, notebook in enumerate(notebooks, start=1):
        accepted = profile["accepted"][notebook.stem]
        parameters = profile["parameters"][notebook.stem] | {k: v for k, v in own.items() if k in accepted}
        label = f"[{study} {index}/{len(notebooks)}] "
        executed = folder / "executed" / study / notebook.name
        execute(notebook, executed, parameters, profile["limits"][notebook.stem], label)
    # A second of grace: some file systems keep coarse times.
    written = [path for path in output.rglob("*") if path.is_file() and path.stat().st_mtime_ns > began - 10**9]
    if f"statistics.{study}.json" not in [path.name for path in written]:
        raise StudyFailed(f"all notebooks ran, but none wrote statistics.{study}.json into {_shown(output)}")
    if not any(path.suffix in {".png", ".svg", ".pdf"} and path.stat().st_size for path in written):
        raise StudyFailed(f"all notebooks ran, but none wrote a figure into {_shown(output)}")


@contextlib.contextmanager
def _alone(study: str, folder: Path):
    """Within, no other run of this study and profile starts; a killed one does not stand in the way."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{study}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyFailed(f"another run of {study} is under way in {_shown(folder)}: wait for it") from None
        yield


def _clock(began: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    return f"{minutes}:{seconds:02d}"


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; the exit status."""
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    if options.check_options:
        return 0
    if options.threads:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
            os.environ[name] = str(options.threads)
    os.environ["MASKMI_PROFILE"] = options.profile  # for the provenance of what the notebooks write
    # Progress bars are text here; tqdm would advise widgets in every notebook.
    ignored = "ignore:IProgress not found"
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), ignored]))
    # The kernels find this package, whichever is installed.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "lib"), os.environ.get("PYTHONPATH")]))

    try:
        notebooks = {study: find_notebooks(ROOT / folder) for study, folder in STUDIES.items()}
        profile = load_profile(PROFILES[options.profile], notebooks)
    except ValueError as error:
        print(f"run_all.sh: {error}", file=sys.stderr)
        return 2
    from maskmi import statistics

    studies = {None: profile["studies"], "all": [study for study in STUDIES if study not in BROUGHT]}.get(
        options.study, [options.study]
    )
    folder = ROOT / "runs" / options.profile
    began = time.monotonic()
    failed = {}
    for study in studies:
        try:
            with _alone(study, folder):
                if options.fresh:
                    for part in ("artefacts", "executed"):
                        shutil.rmtree(folder / part / study, ignore_errors=True)
                run_study(study, notebooks[study], profile[study], folder, options.output)
                statistics.merge(options.output, [study])
        except (StudyFailed, ValueError, OSError) as error:
            failed[study] = error
            print(f"FAILED [{study}] {error}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            print("run_all.sh: interrupted; started again, it goes on from what was finished", file=sys.stderr)
            return 130
    for study in studies:
        summary = str(failed[study]).splitlines()[0] if study in failed else f"results in {_shown(options.output)}"
        print(f"{study}: {'failed: ' if study in failed else ''}{summary}")
    print(f"profile {options.profile}, {_clock(began)} minutes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
