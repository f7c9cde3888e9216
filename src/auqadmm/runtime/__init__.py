"""CUDA graphs, and the memory that they share."""
