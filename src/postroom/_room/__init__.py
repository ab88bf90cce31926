"""The room: one database, the boxes in it, and the workers of these boxes."""
