"""The single record of a job, and its readers."""
