"""The rows of blocks as arithmetic: designs, shards, losses at a point, sums in double precision."""
