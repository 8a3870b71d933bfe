"""The `holdfast` command. Each verb checks its arguments, calls the code that does the work, and prints the result.

    app       all verbs, and the entry point
    init      holdfast init
    start     holdfast run, submit
    progress  follows `run` in the terminal; folder_watch: whether the job's folder can still be written
    status    holdfast status, top
    logs      holdfast logs; log_text: makes the text of logs safe for a terminal
    why       holdfast why
    jobs      holdfast wait, scale, stop, cancel; waiting: the line of `wait`
    checkpoint_plan  holdfast ckpt plan
    usage     holdfast usage
    supervise holdfast supervise
    doctor    holdfast doctor
    cluster   holdfast cluster up, down, status, config
    schema    holdfast schema
    reference writes docs/reference
    options   options that several verbs have
    completion values that Tab completes
    plain_command how arguments appear in help
    job_command   splits a command line between holdfast, sbatch and the script
    job_table the table of all jobs
    errors    prints errors

`holdfast ckpt` is in ckpt/cli/app.py, `holdfast node` in lifecycle/cli.py.
"""

from launcher.cli.app import main as main
