"""Experiments: data that is at hand, problems on it, and optima to measure methods against."""
