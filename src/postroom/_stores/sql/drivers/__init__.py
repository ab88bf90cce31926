"""One file per driver: how a program reaches a connection, in its own transaction or in the caller's."""
