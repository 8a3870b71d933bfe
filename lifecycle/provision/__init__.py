"""Installs and configures a bare node for training jobs of Slurm: `holdfast node provision`.

command    the command line: options, the printed plan, progress and summary
plan       all steps in their order; selects the steps of a request
walk       runs the steps of a plan one after the other
step       the interface of a step, and of the node that a step works on
site       the site's settings for its nodes, /etc/holdfast/node.yaml
hook_settings the site's settings of Slurm's hooks, /etc/holdfast/hooks.yaml
provider   the settings that HyperPod and ParallelCluster write on a node
resume     a systemd unit that continues an interrupted run after a reboot
record     the file on disk that lists which steps have begun and which are done
apt, fstab packages of Debian and Ubuntu; lines of /etc/fstab
fetch      downloads pinned files from their URL or a mirror, and verifies them
steps/     the steps, one module for each subject
"""
