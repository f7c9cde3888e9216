"""From files to features, and from fitted models to files."""
