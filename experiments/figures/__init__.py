"""Figures: pure functions from frames (or arrays) to drawings; `experiments.draw` writes them."""
