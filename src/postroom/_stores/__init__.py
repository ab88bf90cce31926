"""The stores, and what wraps them. A store knows protocols and values; it never imports a box."""
