"""What the benchmarks of all servers share: workers in processes of their own, turns, cases, and results."""
