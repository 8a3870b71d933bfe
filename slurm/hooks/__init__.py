"""The programs that Slurm calls: prolog, epilog, health check and reboot as root, the task prolog as the job's user.

They use only the standard library and holdfast.base, and nothing of lifecycle; they read the result of its checks from
the verdict file.
As root, a hook follows no symbolic link, trusts no name, path or environment value that a user can set, and ends within
its limit even if something hangs. docs/internals/on_disk.md lists the files that hooks keep on a node.

Jobs wait for prologs and epilogs. So modules that only some jobs need (json, Slurm's client) are imported where they
are used.

hook.py          the frame of every hook: time limit, log, environment
log.py           hooks.log
prolog.py        before a job: checks the verdict, makes the job's directories, writes messages for its tasks
epilog.py        after a job: kills leftover processes, keeps its memory for a requeue, records kernel messages
health.py        HealthCheckProgram: runs the checks, drains a failed node if the administrator allows it
departures.py    the work after a job has left, also when Slurm did not call our epilog
reboot.py        RebootProgram
drains.py        recognises drains of Holdfast, and limits their number
verdict.py       the last verdict on this node
directories.py   makes and removes a job's directories, as its user
ledger.py        which jobs have memory on this node, and until when
removal.py       removes directory trees of any depth and size, in small pieces
usage.py         which users' files fill the memory
strays.py        kills processes that outlived their job
incidents.py     records kernel messages about GPUs and EFA
places.py        paths; how root reads and writes files
settings.py      the site's settings, compiled from hooks.yaml
entry.py         the scripts that slurm.conf names
trust.py         checks that only root can change what the hooks run
"""
