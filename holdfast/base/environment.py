"""All environment variables of Holdfast: the name, the meaning, who sets it and who reads it.

Code takes the names from here. Exceptions, which a test compares: shell texts, and programs that import nothing of
other packages (Slurm's hooks, the testbed, the agents' shim).
"""

from __future__ import annotations

from enum import StrEnum

PREFIX = "HOLDFAST_"


class Variable(StrEnum):
    """An environment variable.

    Attributes:
        meaning: its content.
        setter: who sets it.
        readers: who reads it.
    """

    meaning: str
    setter: str
    readers: str

    def __new__(cls, name: str, meaning: str = "", setter: str = "", readers: str = "") -> Variable:
        variable = str.__new__(cls, name)
        variable._value_ = name
        variable.meaning, variable.setter, variable.readers = meaning, setter, readers
        return variable

    def __repr__(self) -> str:
        return repr(self.value)

    # of workers, for their scripts too
    RUN_ID = (
        "HOLDFAST_RUN_ID",
        "The run. The same in all attempts and after all requeues.",
        "supervisor",
        ("scripts, runner, ckpt, the search for a run's processes"),
    )
    ATTEMPT = "HOLDFAST_ATTEMPT", "The attempt, from 0.", "supervisor, runner", "scripts, ckpt, runner"
    RESTART_COUNT = (
        "HOLDFAST_RESTART_COUNT",
        "How often Slurm has started the job again.",
        "supervisor",
        ("scripts, runner, a booster's script"),
    )
    NODE = (
        "HOLDFAST_NODE",
        "This node's name. On Slurm, agents take SLURMD_NODENAME.",
        "runner, local cluster",
        ("scripts, runner, ckpt, the search for a node's processes"),
    )
    NODES = "HOLDFAST_NODES", "The attempt's nodes in node-rank order, with commas.", "supervisor, runner", "ckpt"
    RANKS_PER_NODE = "HOLDFAST_RANKS_PER_NODE", "The number of workers on a node.", "supervisor, runner", "ckpt"
    JOB_DIR = (
        "HOLDFAST_JOB_DIR",
        "The job's folder.",
        "supervisor",
        ("scripts, runner, a booster's script, the check whether another run has ended"),
    )
    JOB_NAME = "HOLDFAST_JOB_NAME", "The job's name.", "supervisor, runner", "ckpt, for the owner of a step"
    SCRIPT = (
        "HOLDFAST_SCRIPT",
        "The path of the training script.",
        "supervisor, runner",
        ("ckpt, for the owner of a step"),
    )
    CHECKPOINT = "HOLDFAST_CHECKPOINT", "The job file's `checkpoint` section, as JSON.", "supervisor, runner", "ckpt"
    SCALE = (
        "HOLDFAST_SCALE",
        "The job file's `elastic.scale` of this size, as JSON.",
        "supervisor, runner",
        ("scripts, as `batch_plan().recipe`"),
    )
    CACHE_DIR = (
        "HOLDFAST_CACHE_DIR",
        ("For scripts: this node's directory for copies of training data. At submission: the directory above it."),
        "user, runner",
        "scripts, runner",
    )
    RAM_DIR = "HOLDFAST_RAM_DIR", "The node's memory directory.", "runner, supervisor", "runner, ckpt"

    # of checkpoint agents
    ROLE = "HOLDFAST_ROLE", "`agent` in a checkpoint agent.", "supervisor", "runner, for agents that are left"
    GENERATION = (
        "HOLDFAST_GENERATION",
        "The generation of the agents; 0 for an attempt's first.",
        "supervisor",
        ("ckpt, runner"),
    )
    HOLDERS = "HOLDFAST_HOLDERS", "Nodes that serve their shards and do not train, with commas.", "supervisor", "ckpt"
    DOMAINS = (
        "HOLDFAST_DOMAINS",
        ("The leaf switch of each of the attempt's nodes, with commas; only with `failure_domain: switch`."),
        "supervisor, runner",
        "ckpt",
    )
    MODULES = "HOLDFAST_MODULES", "The directory of the names that a script may import.", "runner", "ckpt"
    JOBS = (
        "HOLDFAST_JOBS",
        "The nodes and variables of each Slurm job of one MPI world, as JSON.",
        "supervisor",
        ("the program that starts mpirun's daemons"),
    )
    RESERVE = "HOLDFAST_RESERVE", "Space in a template's environment for that of its agents.", "runner", "nobody"
    RUN_ENDED = (
        "HOLDFAST_RUN_ENDED",
        "The command that checks whether another run has ended, as JSON.",
        "supervisor",
        ("ckpt"),
    )
    RUN_PID = "HOLDFAST_RUN_PID", "The process that is the run, where there is no Slurm.", "local cluster, ckpt", "ckpt"

    # of runners
    SUPERVISOR = "HOLDFAST_SUPERVISOR", "The supervisor's address, HOST:PORT.", "supervisor", "runner"
    SUPERVISOR_PID = (
        "HOLDFAST_SUPERVISOR_PID",
        ("The process with which a runner ends; only on the local cluster."),
        "local cluster",
        "runner",
    )
    RUNNER_PID = "HOLDFAST_RUNNER_PID", "The runner, with which its workers end.", "runner", "worker"
    ALLOCATION = (
        "HOLDFAST_ALLOCATION",
        "The booster's number in the run; only in boosters.",
        "supervisor",
        ("runner"),
    )
    MACHINE_GPUS = (
        "HOLDFAST_MACHINE_GPUS",
        ("The GPUs that all nodes of the local cluster share; only there."),
        "local cluster",
        "runner",
    )
    SWITCHES = "HOLDFAST_SWITCHES", "Hostlists by leaf switch, as JSON.", "supervisor", "runner"

    # of Slurm's hooks
    MEMORY_DIR = (
        "HOLDFAST_MEMORY_DIR",
        "The memory directory that the prolog has made for this job.",
        "TaskProlog",
        ("runner"),
    )
    DISK_DIR = (
        "HOLDFAST_DISK_DIR",
        "The user's directory on the node's own disk.",
        "TaskProlog",
        ("scripts, runner, job files, `holdfast doctor`"),
    )

    # of notices, nodes and clusters
    NOTICE = "HOLDFAST_NOTICE", "The kind of a notice.", "observer", "the job file's `notify` command"
    NOTICE_TEXT = "HOLDFAST_NOTICE_TEXT", "The line of a notice.", "observer", "the job file's `notify` command"
    CHECKED_NODE = (
        "HOLDFAST_CHECKED_NODE",
        ("The node to judge in a check of several nodes; the others are for comparison."),
        "user, `holdfast node heal`",
        "`holdfast node check`",
    )
    HOME = (
        "HOLDFAST_HOME",
        "The directory in which nodes have Holdfast; default: /opt/holdfast.",
        "administrator",
        ("on_create.sh"),
    )
    SOURCE = (
        "HOLDFAST_SOURCE",
        "What pip installs, where the source tree is not beside on_create.sh.",
        ("administrator"),
        "on_create.sh",
    )
    CLUSTER_RUN_DIR = (
        "HOLDFAST_CLUSTER_RUN_DIR",
        "Marks the processes of a cluster on one machine.",
        ("`holdfast cluster up`"),
        "`holdfast cluster`",
    )
