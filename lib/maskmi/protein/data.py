"""Natural sequences: proteins for training and reference, parted so that families don't cross, and antibodies.

Proteins are the sequences of Swiss-Prot (release 2014_01) with 40 to 128 residues, all of the twenty amino acids.
MMseqs2 clustered them at 30 % identity; whole clusters are in ``train``, ``validation`` or ``test``. Antibodies are
variable domains from Swiss-Prot and from a human repertoire. Origins, licences, criteria: ``data/proteins/README.md``;
:mod:`maskmi.protein.make_data` makes and checks the files.
"""

from pathlib import Path
from typing import NamedTuple

from maskmi.artefacts import sha256
from maskmi.protein.fasta import Record, read_fasta

FOLDER = Path(__file__).resolve().parents[3] / "data" / "proteins"
MIN_LENGTH, MAX_LENGTH = 40, 128
SPLITS = ("train", "validation", "test")
ANTIBODIES = ("swissprot", "repertoire")
#: Of the files as published.
SHA256 = {
    "swissprot_train": "e5557467483cfd6d45c7e967f0503cf652595f41fc9f87243e248878f95a529d",
    "swissprot_validation": "ecdccce2a8b4f6d60023ee5fe988a912bef4c3c3fccb58faad0be778e1bae8df",
    "swissprot_test": "06f3471c3162709578b821d7531c7fbef02bed541f62bc2786634341edae172e",
    "antibodies_swissprot": "853e18a5bff5543ab51daab8c695b4cfe7a452e6a50e22b442d8313e88355540",
    "antibodies_repertoire": "a0372c412f9e027640ec7a6797b47c7163b24bf64cc864ef3d7b6cd80c4567d0",
}


class Protein(NamedTuple):
    name: str  # accession in UniProt
    sequence: str  # letters of the twenty amino acids
    cluster: int  # number of its cluster, counted over all splits


class Antibody(NamedTuple):
    name: str
    sequence: str  # a variable domain, letters of the twenty amino acids
    chain: str  # H heavy, K kappa, L lambda
    complete: bool  # has the last framework region; else it is about what a V gene codes for
    gene: str = ""  # V gene and allele, only of the repertoire
    clone: int | None = None  # number of its clone, only of the repertoire: cells of one clone have one ancestor


def load_proteins(
    split: str, min_length: int = MIN_LENGTH, max_length: int = MAX_LENGTH, folder: Path | str = FOLDER
) -> list[Protein]:
    """The sequences of a split with ``min_length`` to ``max_length`` residues, cluster by cluster.

    Raises:
        ValueError: for an unknown split, lengths that none has, or a file that is not the one published.
        FileNotFoundError: when the file is missing.
    """
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}: choose from {', '.join(SPLITS)}")
    if min_length > max_length or min_length > MAX_LENGTH or max_length < MIN_LENGTH:
        raise ValueError(f"no protein has {min_length} to {max_length} residues: all have {MIN_LENGTH} to {MAX_LENGTH}")
    proteins = as_proteins(_published(f"swissprot_{split}", folder))
    return [protein for protein in proteins if min_length <= len(protein.sequence) <= max_length]


def load_antibodies(
    source: str, chain: str | None = None, *, one_per_clone: bool = False, folder: Path | str = FOLDER
) -> list[Antibody]:
    """Variable domains of one source: ``swissprot`` (several species), or ``repertoire`` (complete human heavy chains).

    Args:
        chain: H, K or L; all by default.
        one_per_clone: only the first of each clone of the repertoire. A sixth of it is a single clone, so that a
            reference set needs this.

    Raises:
        ValueError: for an unknown source or chain, clones of another source, or a file that is not the one published.
        FileNotFoundError: when the file is missing.
    """
    if source not in ANTIBODIES:
        raise ValueError(f"there are no antibodies from {source!r}: choose from {', '.join(ANTIBODIES)}")
    if chain not in (None, *"HKL"):
        raise ValueError(f"there is no chain {chain!r}: choose H, K or L")
    if one_per_clone and source != "repertoire":
        raise ValueError(f"the clones of antibodies from {source} are not known, only those of the repertoire")
    antibodies = [
        row for row in as_antibodies(_published(f"antibodies_{source}", folder)) if chain in (None, row.chain)
    ]
    if not one_per_clone:
        return antibodies
    first = {}
    for antibody in antibodies:
        first.setdefault(antibody.clone, antibody)
    return list(first.values())


def as_proteins(records: list[Record]) -> list[Protein]:
    """The proteins of the records of a file."""
    return [Protein(name, sequence, int(_fields(rest)["cluster"])) for name, sequence, rest in records]


def as_antibodies(records: list[Record]) -> list[Antibody]:
    """The antibodies of the records of a file."""
    antibodies = []
    for name, sequence, rest in records:
        row = _fields(rest)
        clone = int(row["clone"]) if "clone" in row else None
        antibodies.append(Antibody(name, sequence, row["chain"], row["complete"] == "yes", row.get("gene", ""), clone))
    return antibodies


def _published(name: str, folder: Path | str) -> list[Record]:
    path = Path(folder) / f"{name}.fasta.gz"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: restore it, or make it again as its README says")
    if sha256(path) != SHA256[name]:
        raise ValueError(f"{path} was changed (SHA-256 differs): restore it, or make it again as its README says")
    return read_fasta(path).records


def _fields(description: str) -> dict[str, str]:
    return dict(field.split("=", 1) for field in description.split())
