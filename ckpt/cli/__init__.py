"""`holdfast ckpt`: the command line of checkpoints.

app            the command, with ls and verify
verbs          copy, gc, export, import
bench          bench; the measurements are in benchmarks/ckpt_bench
plan           the memory and storage that a job needs
pins           pin and unpin: steps that retention keeps
rollback       begins a line of descent after an older step
inventory      the steps and shards under a path or URL
output         error messages, exit codes, JSON and tables of all verbs
progress       a progress bar, and what is waited for
"""
