"""The runner, one per node: starts and ends the node's workers, and reports about them to the supervisor.

    runner.py      the process `python -m launcher.runner`: connection to the supervisor, heartbeat, fencing
    attempt.py     the node's part of the running attempt, from start to end
    config.py      the runner's configuration
    report_log.py  messages about the attempt that a new supervisor must receive again
    watch.py       one attempt as seen on this node: the workers' board, the ckpt agent's events
    variables.py   the environment of workers and agents; trackers.py: what experiment trackers read from it
    port.py        a free port for the workers' next rendezvous
    rendezvous.py  torch's rendezvous, which only the job's hosts can reach
    workers.py     controls the warm process; ends workers with certainty
    warm.py        the warm process, which has torch loaded: forks an elastic agent for each attempt
    process_groups.py  keeps a script's process groups until its end
    last_words.py  the end of a worker's stderr
    step_signals.py  signals that Slurm sends to every process: processes that a script forks ignore them
    script.py      inside a worker: runs the user's script as `python script.py` would, a module, or a command
    extensions.py  torch's C++ extensions on this node, and the locks that killed workers leave
    memory.py      the node's memory directory, and those left by ended jobs
    network.py     finds which network NCCL uses in the workers
    activity.py    detects whether the workers do anything
    stacks.py      stack dumps of hung workers

Messages (JSON objects on launcher.connections.channel), runner -> supervisor:
    hello {node, pid, restart_count, allocation, addresses, attempt, warm, port, problem}    first; restart_count: that
        of the job when this runner was started; allocation: the node's Slurm job, or "local"; addresses: IPv4 addresses
        of this host; attempt: the running attempt, or null; problem: why this node cannot train, or null. Then all
        messages of the attempt again, because an earlier supervisor may have received them
    heartbeat {attempt, step, slowest, activity, rank_ended, warm, port}    twice a second and on change; step: the
        newest of the node's ranks; slowest: that of the slowest rank still training; activity: grows while workers do
        anything; rank_ended: whether a rank has ended; port: free for the next rendezvous
    network {attempt, problem, required}     NCCL does not use the node's fabric
    problem {attempt, what}                  shown to users
    started {attempt, pids}                  the workers are running
    first_step {attempt, step, time}         the first step boundary beyond the restored step
    monitor {attempt, event}                 an event of the ckpt agent
    agent_lost {attempt, generation, reason} the ckpt agent did not start, or was lost
    agent_ended {attempt}                    the ckpt agent has ended after it was released
    stopping {attempt, handled}              answers stop if there is no agent; handled: whether a worker handles
        SIGTERM, and exits by itself
    ended {attempt, ok, step, failures: [{rank, exit_code, time, error, traceback, last_words}],
        reason, stopped}                     stopped: whether the workers had been asked to stop
    killed {attempt, step, left}             all processes of the attempt have ended, except the pids in left
    stacks {attempt, ranks: [{rank, state, boundary, frames}]}    the position of each worker; the files are written
    signal {name}                            the runner received this signal; sent to each supervisor, before "ended"
    broken {reason, environment}             this node cannot start workers; environment: is the job's Python the cause?
supervisor -> runner:
    welcome {term, turn}                     answers hello; turn: the node's position in the succession, or null
    ack {turn}                               answers every other heartbeat; for the next in succession, every one
    start {attempt, node_rank, nodes, master_addr, master_port, hosts, agent}    begin the attempt; nodes: a hostlist;
        hosts: for node rank 0, the address ranges that may reach the rendezvous; agent: whether one is being started
    stop {attempt}                           make all ranks stop at one step boundary; without an agent: send SIGTERM to
        workers that handle it
    finish_agent {attempt}                   the job ends: kill the workers; the agent writes the newest step and exits
    release_agent {attempt}                  the ranks have stopped; the agent may finish its writes and exit
    renew_agents {attempt, generation}       end the node's agent; another one is being started
    dump {attempt}                           write the stacks of all workers
    kill {attempt}                           end the attempt's workers and agent now
    hold {attempt, generation}               the node no longer trains; its new agent serves the attempt of other nodes.
        End all older processes
    leave {forget, clear_disk}               exit; forget: remove the memory directory;
        clear_disk: remove the run's steps from the node's disk, because the run continues without the node
"""
