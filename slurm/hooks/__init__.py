"""What Slurm calls: on every node as root (prolog, epilog, health check, reboot), and in every task as its user.

Standard library only, and nothing of lifecycle: what its checks found is read from the verdict file. As root, a hook
follows no symbolic link, trusts no name, path or environment value that a user can set, and ends within its limit
whatever hangs. What stays on the node is described in docs/internals/on_disk.md.

Jobs wait for prologs and epilogs, and most find nothing to do: what only some jobs need (json, Slurm's client) is
imported where it is needed.

hook.py          the frame: limit, environment
log.py           what people read of them
prolog.py        before a job: is the node fit? memory and disk directories for the job, and what tasks are told
epilog.py        after it: strays, memory kept for a requeue, the kernel's complaints
health.py        HealthCheckProgram: looks again, drains where the admin allows it
departures.py    what follows a job's departure, also where Slurm called no epilog of ours
reboot.py        RebootProgram
drains.py        which drains are ours, and how many there may be
verdict.py       what the checks last said of this node
directories.py   a job's directories, made and removed as its user
ledger.py        which jobs have memory on this node, and until when
removal.py       removes trees of any depth and size, in small pieces
usage.py         whose files fill the memory
flush.py         memory of an ended job to its lower tiers, by a process of its user that the hook does not wait for
scope.py         the control group of what runs after a job; devices.py: its devices, with version 2
strays.py        processes that outlived their job
incidents.py     what the kernel said while a job ran
places.py        where all of this is; the site's settings
entry.py         the scripts named in slurm.conf
trust.py         whether only root can change what they run
"""
