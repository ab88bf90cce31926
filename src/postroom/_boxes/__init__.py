"""Inbox and outbox: they check arguments, call the verbs of a store and decode what it returns."""
