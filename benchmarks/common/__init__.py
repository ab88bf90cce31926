"""What the benchmarks of all servers share: workers in separate processes, rounds, cases, and results."""
