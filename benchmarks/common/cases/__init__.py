"""What is measured on every server: one module per question."""
