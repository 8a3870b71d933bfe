"""The `holdfast` command. Each verb checks its words, calls the part that does the work, and prints the result.

    app       all verbs, and the entry point
    init      init
    start     run, submit
    jobs      status, logs, stop, cancel
    supervise the verb of that name
    doctor    the verb of that name
    cluster   up, down, status of a test cluster
    options   what several verbs have in common
    plain_command how arguments appear in help
    job_command   which words of a command line are sbatch's or the script's
    schema    the verb of that name; reference.py writes docs/reference
    man       pages of the manual
    errors    how errors are printed

`holdfast ckpt` and `holdfast node` live in their rooms: ckpt/cli/app.py and lifecycle/cli.py.
"""

from launcher.cli.app import main as main
