"""Which sequences are variable domains of antibodies, judged by their numbering.

Numbering aligns a sequence to a profile of each kind of chain, here by ``immunum`` in the scheme of IMGT (Lefranc et
al. 2003, Dev. Comp. Immunol. 27:55). The alignment alone says little: of 300 shuffled domains 43 were numbered, by some
scrap. So a domain must also have the three residues that nearly all share: the two cysteines that are bound to each
other, and the tryptophan packed against them; of the shuffled ones none did.

It is a coarse sign of the fold, no measure of naturalness: with a fifth of the residues of natural domains drawn anew
at random, 130 of 300 still passed; with half of them, one.
"""

import re
from collections.abc import Sequence
from functools import cache

import numpy as np

from maskmi.metrics import Interval, wilson_interval

ANTIBODY, RECEPTOR = "HKL", "ABGD"  # heavy, kappa, lambda; chains of T-cell receptors
CONSERVED = {"23": "C", "41": "W", "104": "C"}  # by IMGT position
LAST_FRAMEWORK = {"119": "G", "121": "G"}  # of the motif [WF]GxG that every J gene codes for
LOOPS = ((27, 38), (56, 65), (105, 117))  # IMGT positions of the complementarity-determining regions (CDR)
CLONE_IDENTITY = 0.8


def variable_domain(sequence: str):
    """The numbering of a sequence's best variable domain that has what is ``CONSERVED``, or None if it has none.

    Returns:
        ``immunum.NumberingResult``: ``chain`` is one of H, K, L, or A, B, G, D in T-cell receptors; ``numbering`` maps
        IMGT positions to residues; the domain is ``sequence[query_start : query_end + 1]``.

    Raises:
        ModuleNotFoundError: when immunum is not installed.
    """
    result = _annotator().number(sequence)
    return result if result.error is None and has(result.numbering, CONSERVED) else None


def has(numbering: dict[str, str], residues: dict[str, str]) -> bool:
    """Whether a numbering has these residues at these positions."""
    return all(numbering.get(position) == residue for position, residue in residues.items())


def are_heavy_domains(sequences: Sequence[str], complete: bool = False) -> np.ndarray:
    """Which sequences [N] have a variable domain with what is ``CONSERVED``, and a heavy one: bool [N].

    Args:
        complete: ask for what is ``LAST_FRAMEWORK`` too. Without it, domains that break off before that region count,
            as does what a V gene alone codes for.

    Raises:
        ModuleNotFoundError: when immunum is not installed.
    """
    domains = map(variable_domain, sequences)
    needed = LAST_FRAMEWORK if complete else {}
    return np.array([bool(d) and d.chain == "H" and has(d.numbering, needed) for d in domains], dtype=bool)


def heavy_domain_share(sequences: Sequence[str], complete: bool = False) -> Interval:
    """Share of sequences [N] that are heavy variable domains, with its Wilson interval; see :func:`are_heavy_domains`.

    Raises:
        ValueError: when there are no sequences.
        ModuleNotFoundError: when immunum is not installed.
    """
    accepted = are_heavy_domains(sequences, complete)
    return wilson_interval(int(accepted.sum()), len(accepted))


def cdr3(numbering: dict[str, str]) -> str:
    """The third complementarity-determining region of a numbering, without the cysteine and tryptophan around it."""
    (first, last) = LOOPS[-1]
    return "".join(residue for place, residue in numbering.items() if first <= _position(place) <= last)


def loops(sequence: str) -> np.ndarray:
    """Which residues of a variable domain are in its three complementarity-determining regions: bool [L].

    Raises:
        ValueError: when the sequence has no variable domain.
        ModuleNotFoundError: when immunum is not installed.
    """
    domain = variable_domain(sequence)
    if domain is None:
        raise ValueError(f"no variable domain was found in {sequence}: its loops are not known")
    inside = np.zeros(len(sequence), dtype=bool)
    # The numbering names the residues of the domain in their order.
    for i, place in enumerate(domain.numbering, domain.query_start):
        inside[i] = any(first <= _position(place) <= last for first, last in LOOPS)
    return inside


def _position(place: str) -> int:
    """The number of an IMGT position: insertions have letters after it, as 111A."""
    return int(re.match(r"\d+", place)[0])


def clones(rearrangements: list[tuple[str, str, str]]) -> list[int]:
    """The number of the clone of each rearrangement: V gene, J gene, third complementarity-determining region (CDR3).

    Members of a clone have the same genes and length of CDR3, and each shares at least 80 % of its residues with
    another: single linkage, as Gupta et al. 2017, J. Immunol. 198:2489, do on nucleotides.
    """
    clone = list(range(len(rearrangements)))
    for i, (*genes, loop) in enumerate(rearrangements):
        for j, (*others, other) in enumerate(rearrangements[:i]):
            if clone[i] == clone[j] or genes != others or len(loop) != len(other):
                continue
            if sum(a == b for a, b in zip(loop, other, strict=True)) >= CLONE_IDENTITY * len(loop):
                joined = {clone[i], clone[j]}
                clone = [min(joined) if number in joined else number for number in clone]
    numbers = {first: number for number, first in enumerate(dict.fromkeys(clone))}
    return [numbers[first] for first in clone]


@cache
def _annotator():
    try:
        import immunum  # needed for this alone
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "immunum is not installed, which numbers antibodies: pip install immunum==2.0.0"
        ) from None
    # Receptors' chains compete, so that a domain of a receptor is not taken for the nearest antibody's.
    return immunum.Annotator(chains=list(ANTIBODY + RECEPTOR), scheme="imgt")
