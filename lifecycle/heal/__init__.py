"""Returns nodes to service that our hooks have drained. Runs on the controller and uses only Slurm's commands.

command.py     `holdfast node heal`, `return`, `lemons`
healer.py      one pass over all nodes
policy.py      decides from a node's history: reboot, replace, or leave it drained. Pure functions
case.py        a node that is being healed: reserve, reboot or replace, check, return
comparison.py  the check between nodes: neighbours and script
ways.py        reboots and replacements by Slurm, HyperPod, EC2 or the administrator's program
history.py     heal.json: past actions and open cases
lemons.py      the nodes that fail again and again
settings.py    /etc/holdfast/heal.yaml
"""
