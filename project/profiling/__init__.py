"""What ``lightning profile`` measures: where the time of a step goes, and the memory."""
