"""Centred and scaled columns: exact, and invisible outside of the method that works in them."""
