"""What several packages need and what is no checkpoint, node or job. Imports the standard library alone.

files       durable writes; plain_file: reads files of other users safely; disk_read: reads with a deadline
deadlines   waits with a deadline
processes   finds and ends processes on this node; programs: runs one to its end
sections    the time of a process's steps, by section
environment all environment variables: name, meaning, who sets and reads them
messages    catalogues of the messages between two kinds of processes, and the check of one
"""
