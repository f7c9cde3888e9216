"""Centred and scaled columns: exact, and visible only to the method that uses them."""
