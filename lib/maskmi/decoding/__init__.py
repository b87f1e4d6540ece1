"""Decoders: which masked positions to commit together, step by step.

``decode(model, tokens, decoder)`` runs a decoder over many sequences at once. A decoder is a callable
``View -> Decision`` in a file of its own; :mod:`maskmi.decoding.state` describes both.
"""

from maskmi.decoding.confidence import ConfidenceFactor, ConfidenceThreshold
from maskmi.decoding.entropy_bounded import EntropyBounded
from maskmi.decoding.joint_error import JointError, joint_error
from maskmi.decoding.loop import Decoded, Trace, decode
from maskmi.decoding.margin import Margin
from maskmi.decoding.mi_guided import MIGuided
from maskmi.decoding.naive import Naive
from maskmi.decoding.sequential import Sequential
from maskmi.decoding.sources import AttentionMatrix, HeadMatrix, ProbedMatrix
from maskmi.decoding.state import Decision, View

__all__ = [
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
