"""One module for each case."""
