"""One per node: holds the node's workers and speaks for it.

    runner.py      the process `python -m launcher.runner`: connection to the supervisor, heartbeat, fencing
    attempt.py     what the node has of the attempt that runs, from its start to its end
    config.py      what it needs to know
    report_log.py  the messages of the attempt that a new supervisor has to get again
    watch.py       one attempt as seen on this node: the workers' board, the ckpt agent's events
    variables.py   what workers and agents find in their environment
    port.py        for the workers' next rendezvous
    rendezvous.py  torch's, which only the job's hosts reach
    workers.py     the runner's handle on the warm process; ends workers for certain
    warm.py        the warm process, which has torch loaded: forks an elastic agent for each attempt
    process_groups.py  keeps a script's process groups until its end
    last_words.py  the end of a worker's stderr
    step_signals.py  signals that Slurm sends to every process: what a script forks leaves them to its rank
    script.py      inside a worker: runs the user's script as `python script.py` would
    memory.py      the node's memory directory; and what ended jobs have left beside it
    network.py     which network NCCL uses in the workers
    activity.py    whether the workers do anything that can be seen from outside
    stacks.py      stack dumps of workers that hang

Messages (JSON objects on launcher.connections.channel), runner -> supervisor:
    hello {node, pid, restart_count, allocation, addresses, attempt, warm, port, problem}    first; restart_count: of
        the job when this runner was started; allocation: the Slurm job that the node belongs to, or "local"; addresses:
        of this host, IPv4; attempt: what runs here, or null; problem: why this node cannot train, or null. Then once
        more its messages of the attempt: an earlier supervisor may have got them
    heartbeat {attempt, step, slowest, activity, rank_ended, warm, port}    twice a second and on change; step: the
        furthest of the node's ranks; slowest: of those still training; activity: grows while they do anything that can
        be seen; rank_ended: whether one of them has ended; port: free for the next rendezvous
    network {attempt, problem, required}     NCCL does not use the node's fabric
    problem {attempt, what}                  for people
    started {attempt, pids}                  the workers run
    first_step {attempt, step, time}         the first step boundary beyond the restored step
    monitor {attempt, event}                 an event of the ckpt agent
    agent_lost {attempt, generation, reason} the ckpt agent did not come up, or went away
    agent_ended {attempt}                    the ckpt agent has ended after it was released
    stopping {attempt, handled}              answers stop where no agent is: whether a worker handles SIGTERM, and ends
        by that
    ended {attempt, ok, step, failures: [{rank, exit_code, time, error, traceback, last_words}],
        reason, stopped}                     stopped: whether the workers had been asked to stop
    killed {attempt, step, left}             nothing of the attempt runs here any more, but for the pids in left
    stacks {attempt, ranks: [{rank, state, boundary, frames}]}    where each worker is; the files are written
    signal {name}                            the runner got this signal; sent again to each supervisor, before the ends
    broken {reason, environment}             this node cannot start workers at all; is it the job's Python?
supervisor -> runner:
    welcome {term, turn}                     answers hello; turn: the node's place in the succession, or null
    ack {turn}                               answers a heartbeat: every other one, of who is next every one
    start {attempt, node_rank, nodes, master_addr, master_port, hosts, agent}    begin the attempt; nodes: a hostlist;
        hosts: for node rank 0, address ranges of those who may reach the rendezvous; agent: whether one is coming up
    stop {attempt}                           ask all ranks to stop at one step boundary; without an agent: SIGTERM to
        those that handle it
    release_agent {attempt}                  training is over: let the agent finish and end
    renew_agents {attempt, generation}       end the node's agent; another is coming up
    dump {attempt}                           write the stacks of all workers
    kill {attempt}                           end the attempt's workers and agent now
    hold {attempt, generation}               the node does not train any more; its agent, which is coming up, serves
        the attempt of others: end all that is older
    leave {forget}                           end; forget: remove the memory directory, unless an epilog is to flush it
"""
