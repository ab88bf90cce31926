"""Exhaustive exploration of the FIFO rules.

`world` is a box with the workers that use it, and the rules that hold after each event. `events` are what can happen.
`search` goes breadth-first through every state that the memory store can reach; `state` says which states are the same.
`liveness` checks that nothing is stuck. `replay` runs the sequences that were found on another store.
"""
