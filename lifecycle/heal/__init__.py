"""Brings nodes back that our hooks have drained: on the controller, through Slurm alone.

command.py     `holdfast node heal`, `return`, `lemons`
healer.py      one pass over all nodes: what would be done, or is done
policy.py      reboot, replace, or leave it: decided from the node's history. Pure functions
case.py        a node being healed: reserved, started anew, checked alone and beside others, and only then returned
comparison.py  the check between nodes: with whom, by which script
ways.py        how a node is rebooted or replaced: Slurm, HyperPod, EC2, the admin's own program
history.py     what was done to which node, and the open cases: heal.json
lemons.py      the nodes that fail again and again
settings.py    /etc/holdfast/heal.yaml
"""
