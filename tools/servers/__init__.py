"""Private servers for tests and benchmarks: started on free ports, in temporary folders, and ended by process id."""
