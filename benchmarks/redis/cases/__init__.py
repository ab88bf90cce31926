"""What is measured on Redis only: one module per question."""
