import sys

import numpy as np
import pytest

from maskmi.metrics import wilson_interval
from maskmi.protein import antibodies
from maskmi.protein.antibodies import are_heavy_domains, cdr3, clones, has, heavy_domain_share, loops, variable_domain
from maskmi.protein.data import load_antibodies

# Trastuzumab: the variable domains of its heavy and kappa chain.
HEAVY = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTI"
    "SADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)
KAPPA = "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK"
# Beta chain of the T-cell receptor A6 (1ao7), variable domain.
BETA = (
    "NAGVTQTPKFQVLKTGQSMTLQCAQDMNHEYMSWYRQDPGMGLRLIHYSVGAGITDQGEVPNGYNVSRST"
    "TEDFPLRLLSAAPSQTSVYFCASRPGLAGGRPEQYFGPGTRLTVT"
)
UBIQUITIN = "MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG"


def test_numbering_of_a_heavy_chain_with_what_stands_around_it():
    domain = variable_domain("MEFGLSWVFLVAILKGVQC" + HEAVY + "ASTKGPSVFPLAP")  # signal peptide, constant region
    assert (domain.chain, domain.query_start, domain.query_end) == ("H", 19, 19 + len(HEAVY) - 1)
    # By hand: C22, W36, C96 and the G of WGQG after W110 of the sequence, counted from 1.
    assert (HEAVY[21], HEAVY[35], HEAVY[95], HEAVY[109:113]) == ("C", "W", "C", "WGQG")
    assert has(domain.numbering, {"1": "E", "23": "C", "41": "W", "104": "C", "118": "W", "119": "G", "128": "S"})
    assert cdr3(domain.numbering) == HEAVY[96:109] == "SRWGGDGFYAMDY"


def test_only_heavy_domains_with_the_conserved_residues_are_accepted():
    assert [variable_domain(sequence).chain for sequence in (HEAVY, KAPPA, BETA)] == ["H", "K", "B"]

    def without(place):  # counted from 1; alanine there
        return HEAVY[: place - 1] + "A" + HEAVY[place:]

    shuffled = ["".join(np.random.default_rng(seed).permutation(list(HEAVY))) for seed in range(20)]
    refused = [KAPPA, BETA, UBIQUITIN, HEAVY[:60], HEAVY[60:], HEAVY[::-1], "", "A" * 120, *shuffled]
    refused += [without(22), without(36), without(96)]
    accepted = [HEAVY, HEAVY[:100], without(40), "GGGGS" + HEAVY]
    assert not are_heavy_domains(refused).any()
    assert are_heavy_domains(accepted).all()
    # Cut after the second cysteine, and without the first G of WGQG.
    assert are_heavy_domains([*accepted, without(111)], complete=True).tolist() == [True, False, True, True, False]


def test_share_with_its_interval():
    assert heavy_domain_share([HEAVY] * 3 + [KAPPA]) == wilson_interval(3, 4)
    assert heavy_domain_share([HEAVY, HEAVY[:100]], complete=True).value == 0.5
    with pytest.raises(ValueError, match="n > 0"):
        heavy_domain_share([])


def test_natural_heavy_chains_are_accepted():
    natural = [row.sequence for row in load_antibodies("repertoire", one_per_clone=True)[:100]]
    assert are_heavy_domains(natural).all() and are_heavy_domains(natural, complete=True).mean() > 0.95


def test_without_immunum_the_error_says_what_to_install(monkeypatch):
    antibodies._annotator.cache_clear()
    monkeypatch.setitem(sys.modules, "immunum", None)
    with pytest.raises(ModuleNotFoundError, match="immunum is not installed, .*: pip install immunum==2.0.0"):
        heavy_domain_share([HEAVY])


def test_cdr3_keeps_insertions():
    numbering = {"104": "C", "105": "A", "111": "G", "111A": "S", "111AB": "T", "112A": "Y", "117": "D", "118": "W"}
    assert cdr3(numbering) == "AGSTYD"


def test_loops_are_where_imgt_has_them():
    """Trastuzumab's by IMGT: GFNIKDTY, IYPTNGYT, SRWGGDGFYAMDY; also behind a signal peptide."""
    for before in ("", "MEFGLSWVFLVAILKGVQC"):
        inside = loops(before + HEAVY)
        assert len(inside) == len(before) + len(HEAVY)
        starts = np.flatnonzero(np.diff(inside.astype(int)) == 1) + 1
        assert [(before + HEAVY)[start : start + 3] for start in starts] == ["GFN", "IYP", "SRW"]
        kept = "".join(letter for letter, loop in zip(before + HEAVY, inside, strict=True) if loop)
        assert kept == "GFNIKDTY" + "IYPTNGYT" + "SRWGGDGFYAMDY"
    with pytest.raises(ValueError, match="no variable domain"):
        loops(UBIQUITIN)


def test_clones_are_linked_by_steps():
    """Of 10 residues up to 2 may differ. a-b differ in 2, b-c in 2, a-c in 4: one clone through b. d differs in 3."""
    a, b, c, d = "AAAAAAAAAA", "AAAAAAAACC", "AAAAAACCCC", "DDDAAAAAAA"
    assert clones([("V1", "J1", loop) for loop in (a, c, d, b)]) == [0, 0, 1, 0]
    # Other genes and another length make other clones.
    assert clones([("V1", "J1", a), ("V2", "J1", a), ("V1", "J2", a), ("V1", "J1", a + "A"), ("V1", "J1", a)]) == [
        *(0, 1, 2, 3, 0)
    ]
    assert clones([]) == []
