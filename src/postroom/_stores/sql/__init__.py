"""Stores on SQL databases: programs written once, statements as data, one folder per engine, one file per driver."""
