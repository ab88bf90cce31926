"""`postroom dead`: the letters that were given up. One file per command."""
