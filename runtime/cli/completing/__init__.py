"""Shell completion: the command line read from its parser, and written as a script for each shell."""
