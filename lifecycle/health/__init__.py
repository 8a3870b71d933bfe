"""Is this node fit? Checks over facts, each giving one Finding.

command    `holdfast node check`
table      findings for people
verdict    findings for Slurm's hooks: the file
runner     many checks side by side, none of which can hang the run
tree       a check that is given up, killed with all that it has started
catalog    every check there is
host ...   the checks, one subject a module
preflight  what the launcher's runner asks
check      the contract: Node, Check, Level
settings   what the site says
finding    the result of a check, with the codes that Nagios plugins use
"""
