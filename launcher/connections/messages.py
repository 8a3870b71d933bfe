"""The catalogue of all messages between runners and supervisor, over launcher.connections.channel.

Both ends are of one release and check what they receive: a message that is not in the catalogue, lacks a field or has
an unknown one is a defect. The supervisor then goes on without the node; a runner reports its node as broken.
"""

from __future__ import annotations

from holdfast.base.messages import Way, message

FROM_RUNNER = Way("runner", "supervisor", {
    "hello": message(
        "The first message. All messages of the running attempt follow again, because an earlier supervisor may have "
        "received them. `restart_count`: that of the job when this runner was started. `allocation`: the node's Slurm "
        "job, or \"local\". `addresses`: IPv4 addresses of this host. `problem`: why this node cannot train.",
        node=str, pid=int, restart_count=int, allocation=str, addresses=list, attempt=int | None, warm=bool, port=int,
        problem=str | None),
    "heartbeat": message(
        "Twice a second and on change. `step`: the newest of the node's ranks. `slowest`: that of the slowest rank "
        "still training. `activity`: grows while workers do anything. `rank_ended`: whether a rank has ended. `port`: "
        "free for the next rendezvous. `times`: of each rank with enough new steps: rank, number of steps, and the "
        "medians of the seconds of a step in data, compute and communication. `section`: what the ranks do; see "
        "launcher.core.hang:WorkSection.",
        attempt=int | None, step=int | None, slowest=int | None, section=str, activity=int, rank_ended=bool,
        warm=bool, port=int, times=list),
    "incident": message(
        "On change, and to each supervisor. `reason`: what the node's health checks have found critical; null: nothing "
        "any more.", reason=str | None),
    "problem": message("Shown to users; the attempt goes on.", attempt=int, what=str, detail=str | None),
    "fault": message(
        "The attempt is to end. `kind`: one of launcher.core.faults:FaultKind. `rank`: the rank at fault; null: no "
        "single one. `action`: what follows; null: what follows a fault of its class.",
        attempt=int, kind=str, reason=str, rank=int | None, action=str | None),
    "started": message("The workers are running.", attempt=int, pids=list),
    "first_step": message("The first step boundary beyond the restored step.", attempt=int, step=int, time=float),
    "monitor": message("An event of the node's checkpoint agent.", attempt=int, event=dict),
    "agent_lost": message(
        "The checkpoint agent did not start, or was lost.", attempt=int, generation=int, reason=str),
    "agent_ended": message("The checkpoint agent has ended after it was released.", attempt=int),
    "stopping": message(
        "Answers `stop` if there is no agent. `handled`: whether a worker handles SIGTERM, and exits by itself.",
        attempt=int, handled=bool),
    "ended": message(
        "The workers have ended. `failures`: objects with rank, exit_code, time, error, traceback, last_words and log. "
        "`reason`: why there is no failure of a worker. `stopped`: whether the workers had been asked to stop. "
        "`oom_kills`, `kernel`: kills in the node's cgroup, and messages of its kernel, during the attempt.",
        attempt=int, ok=bool, step=int | None, failures=list, reason=str | None, stopped=bool, oom_kills=int,
        kernel=list),
    "killed": message(
        "All processes of the attempt have ended, except the pids in `left`. `held`: the memory on the node's GPUs "
        "that is still not free; \"\" if all is.", attempt=int, step=int | None, left=list, held=str),
    "lingering": message(
        "Killed processes of the attempt have not ended yet, or still hold memory on the node's GPUs (`held`). "
        "`killed` follows, after `wait_s` seconds at the latest.", attempt=int, held=str, wait_s=float),
    "stacks": message(
        "The position of each worker, as in launcher.diagnosis.hang_facts:RankFacts. The files are written. `ras`: "
        "processes of the job that NCCL finds missing or behind, as in launcher.diagnosis.ras:RasProcess.",
        attempt=int, ranks=list, ras=list),
    "signal": message("The runner received this signal. Sent to each supervisor, before `ended`.", name=str),
    "broken": message(
        "This node cannot start workers. `environment`: whether the job's Python is the cause.",
        reason=str, environment=bool),
})  # fmt: skip

TO_RUNNER = Way("supervisor", "runner", {
    "welcome": message(
        "Answers `hello`. `turn`: the node's position in the succession.", term=int, turn=int | None),
    "ack": message("Answers every other heartbeat; for the next in succession, every one.", turn=int | None),
    "start": message(
        "Begin the attempt. `nodes`: a hostlist. `hosts`: for node rank 0, the address ranges that may reach the "
        "rendezvous. `agent`: whether one is being started.",
        attempt=int, node_rank=int, nodes=str, master_addr=str, master_port=int, hosts=list, agent=bool),
    "stop": message(
        "Make all ranks stop at one step boundary; without an agent: send SIGTERM to workers that handle it. "
        "`lower_s`: for how long ranks that have saved wait for the lower tiers; null: until their own deadline.",
        attempt=int, lower_s=float | None),
    "finish_agent": message(
        "The job ends: kill the workers. The agent writes the newest step to the lower tiers, and exits.", attempt=int),
    "release_agent": message("The ranks have stopped. The agent may finish its writes and exit.", attempt=int),
    "renew_agents": message("End the node's agent; another one is being started.", attempt=int, generation=int),
    "dump": message("Write the stacks of all workers.", attempt=int),
    "kill": message("End the attempt's workers and agent now.", attempt=int),
    "hold": message(
        "The node no longer trains; its new agent serves the attempt of other nodes. End all older processes.",
        attempt=int, generation=int),
    "leave": message(
        "Exit. `forget`: remove the memory directory. `clear_disk`: remove the run's steps from the node's disk, "
        "because the run continues without the node.",
        forget=bool, clear_disk=bool),
})  # fmt: skip
