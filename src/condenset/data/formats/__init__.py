"""File formats of condensed sets for other programs: one module per format, and the table of all."""
