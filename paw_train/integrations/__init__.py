"""PaW inside the trainers of other projects."""
