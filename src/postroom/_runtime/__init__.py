"""The runtime: workers that claim messages, call handlers and settle. Async; it imports no SQL."""
