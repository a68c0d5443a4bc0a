"""The checks, a file for each subject; a file that is deleted takes its checks along."""
