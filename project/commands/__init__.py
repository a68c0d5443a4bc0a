"""What ``lightning`` does beyond fit, validate, test and predict: one verb per file."""
