"""AUQ-LR: weights that keep a low-rank factor of the curvature."""
