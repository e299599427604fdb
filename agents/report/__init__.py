"""The report of an evaluation: rows, and the forms in which people meet them."""
