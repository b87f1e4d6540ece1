"""Pairwise mutual information in masked discrete sequence models, and decoding several positions at once with it."""

from pathlib import Path

__version__ = "0.1.0"

# The study's folder: data/, checkpoints/, notebooks/ and figures/ lie in it, wherever a notebook is started from.
ROOT = Path(__file__).resolve().parents[2]
