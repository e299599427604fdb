"""What runs as machine code, and the layout of the arrays it runs on. Nothing here allocates."""
