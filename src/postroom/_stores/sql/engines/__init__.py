"""One folder per engine: its statements, its migrations, and the few facts that are not SQL."""
