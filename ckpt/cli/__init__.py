"""`holdfast ckpt`: the command line of checkpoints.

app             the command, with ls and verify
verbs           copy, gc, export, import
bench           bench, whose measurements are in benchmarks/ckpt_bench
plan, rebuild   the verbs of their names
inventory       the steps and shards that a path or URL holds
output          how a verb reports an error and prints JSON; table: a table, page by page; progress: a progress bar
silent_storage  a warning when storage does not answer, and Ctrl-C that works meanwhile
"""
