"""The runtime: it turns stored messages into handled ones. Async; it knows protocols and handlers, never SQL."""
