"""A simulator of bad days: the real decision core against simulated nodes, network, scheduler, folder and supervisors.

    schedule     what a simulated job is, and which faults it meets; drawn from a seed
    clock        simulated time: one heap of events
    world        everything of one run, and how it ends
    network      which host reaches which; connections between runners and supervisors
    host         a node of the cluster: its processes and its memory
    runner       a node's runner, as launcher.runner behaves
    training     the workers of one attempt, on all its nodes
    agents       the checkpoint agents of one attempt and generation
    standby      who takes over from a supervisor that is missed; the batch script, which keeps one
    slurm        the scheduler
    folder       the job's folder: events, terms, lease, result
    driver       a supervisor: performs the core's commands, and makes its inputs
    links        the supervisor's side of the runners' connections; launcher.core.liveness judges them
    injection    the faults by kind
    invariants   what must be true at every step, and at the end
    event_rules  what must be true of the events in the file
    journal      what one supervisor has commanded and recorded, and its inputs
    decision_rules  does a decision do what it records, reach its nodes, and set a deadline to what it waits for
    effect_rules  the events and commands that follow from each kind of input
    time_rules   the longest times between commands, events and inputs
    successor    a replay of the events gives the state
    shrink       the fewest faults that still fail
    costs        what a job comes to; single_faults: what each fault costs in a quiet job
    state_machine  the page of the core's stages and phases, from these faults' runs
    campaign     many schedules, on all cores
    mutants      mutants of the core, and which of them the schedules kill

Everything follows from the schedule. There is no asyncio, no thread and no real time. Heartbeats are not simulated one
by one: what they tell is computed when something changes.

The rules (invariants, *_rules, journal) know commands, events, inputs, outcomes, times and the simulated world.
They see nothing of the core's state.
"""
