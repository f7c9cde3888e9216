"""Arithmetic on the rows of blocks: designs, shards, losses at a point, sums in double precision."""
