"""Sudoku: reading grids, solving, symmetries, grading and data sets."""
