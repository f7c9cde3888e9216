"""Methods side by side, at equal gap."""
