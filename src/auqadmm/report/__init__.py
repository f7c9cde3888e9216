"""From runs to figures, tables and files. Only this package imports matplotlib."""
