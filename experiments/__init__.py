"""Runs, tables and figures: from a Hydra config to results as data."""
