"""Protein language models behind the interface of masked models."""
