"""Decoders: which masked positions to commit together, step by step.

``decode(model, tokens, decoder)`` runs a decoder over many sequences at once. A decoder is a callable
``View -> Decision`` in a file of its own; :mod:`maskmi.decoding.state` describes both.
"""

from maskmi.decoding.agdo import AGDO
from maskmi.decoding.confidence import ConfidenceFactor, ConfidenceThreshold
from maskmi.decoding.corrected import Corrected
from maskmi.decoding.dapd import DAPD
from maskmi.decoding.depcap import DepCap
from maskmi.decoding.dilated import Dilated
from maskmi.decoding.entropy_bounded import EntropyBounded
from maskmi.decoding.info_gain import InfoGain
from maskmi.decoding.joint_error import JointError, joint_error
from maskmi.decoding.klass import KLASS
from maskmi.decoding.loop import Decoded, Trace, decode
from maskmi.decoding.margin import Margin
from maskmi.decoding.mi_guided import MIGuided
from maskmi.decoding.naive import Naive
from maskmi.decoding.p2 import P2
from maskmi.decoding.punt import PUNT
from maskmi.decoding.remdm import ReMDMCap, ReMDMLoop
from maskmi.decoding.saber import Saber
from maskmi.decoding.sequential import Sequential
from maskmi.decoding.sources import AttentionMatrix, HeadMatrix, ProbedMatrix
from maskmi.decoding.state import Decision, View
from maskmi.decoding.tie import decode_tie
from maskmi.decoding.wino import WINO

__all__ = [
    "decode_tie",
    "WINO",
    "Saber",
    "ReMDMLoop",
    "ReMDMCap",
    "P2",
    "Corrected",
    "PUNT",
    "KLASS",
    "InfoGain",
    "Dilated",
    "DepCap",
    "DAPD",
    "AGDO",
    "AttentionMatrix",
    "ConfidenceFactor",
    "ConfidenceThreshold",
    "Decision",
    "Decoded",
    "EntropyBounded",
    "HeadMatrix",
    "JointError",
    "MIGuided",
    "Margin",
    "Naive",
    "ProbedMatrix",
    "Sequential",
    "Trace",
    "View",
    "decode",
    "joint_error",
]
