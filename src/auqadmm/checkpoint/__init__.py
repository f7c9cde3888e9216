"""The state of a run on disk: complete or absent, and nothing pickled."""
