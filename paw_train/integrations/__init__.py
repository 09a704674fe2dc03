"""PaW inside the trainers of others."""
