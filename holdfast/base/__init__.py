"""What several packages need and what is no checkpoint, node or job. Imports the standard library alone.

messages   catalogues of the messages between two kinds of processes, and the check of one
"""
