"""Weights W_j as operators, their sum K, and the consensus step in the metric K."""
