"""Parts of somebody else's: a method, two losses, a regularizer and an engine, by public names alone."""
