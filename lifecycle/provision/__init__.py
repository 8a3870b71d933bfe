"""Makes a bare node a node that Slurm can train on: `holdfast node provision`.

command    the verb: reads the request, runs the plan, says how it ended
plan       the steps in their order, and which of them a request means
walk       goes through a plan: skip, nothing to do, or apply and verify; one record survives a crash
step       what a step is; the node as a step sees it
site       what this site's nodes should be (/etc/holdfast/node.yaml), over what the provider's own files say
provider   HyperPod's and ParallelCluster's ways to say it
resume     after a reboot in the middle it goes on by itself
record     which steps were begun and done, on disk
apt, fstab Debian's packages; mount points
fetch      pinned files from their URL, or from a mirror
steps/     one module for each subject
"""
