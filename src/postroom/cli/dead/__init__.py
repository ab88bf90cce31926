"""`postroom dead`: dead letters. One file per command."""
