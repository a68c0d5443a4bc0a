"""A trained run as a file for others: exported, checked, described."""
