"""Small tasks, each with one planted mistake and beside it the same without."""
