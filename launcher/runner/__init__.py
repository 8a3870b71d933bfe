"""The runner, one per node: starts and ends the node's workers, and reports about them to the supervisor.

    runner.py      the process `python -m launcher.runner`: connection to the supervisor, heartbeat, fencing
    attempt.py     the node's part of the running attempt, from start to end
    config.py      the runner's configuration
    report_log.py  messages about the attempt that a new supervisor must receive again
    watch.py       one attempt as seen on this node: the workers' board, the ckpt agent's events
    variables.py   the environment of workers and agents; trackers.py: what experiment trackers read from it
    cache.py       the node's directory for copies of training data
    port.py        a free port for the workers' next rendezvous
    rendezvous.py  torch's rendezvous, which only the job's hosts can reach
    workers.py     controls the warm process; ends workers with certainty
    warm.py        the warm process, which has torch loaded: forks an elastic agent for each attempt
    learned.py     modules that a script loads by itself: which can be loaded in advance
    process_groups.py  keeps a script's process groups until its end
    last_words.py  the end of a worker's stderr
    step_signals.py  signals that Slurm sends to every process: processes that a script forks ignore them
    script.py      inside a worker: runs the user's script as `python script.py` would, a module, or a command
    extensions.py  torch's C++ extensions on this node, and the locks that killed workers leave
    memory.py      the node's memory directory, and those left by ended jobs
    gpu_memory.py  memory on the node's GPUs that ended workers still hold
    network.py     finds which network NCCL uses in the workers
    activity.py    detects whether the workers do anything
    stacks.py      stack dumps of hung workers
    step_times.py  the times of a worker's last steps; step_hooks.py: how it measures them; stream_clock.py: on GPUs
    ras.py         what NCCL's RAS tells of a hang
    collectives.py  the collectives that a worker has entered, from torch's Flight Recorder

The messages to and from the supervisor are in launcher.connections.messages.
"""
