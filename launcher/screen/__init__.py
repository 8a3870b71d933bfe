"""The screens of `holdfast status --watch` and `holdfast top`.

grid      the nodes: a cell or a character for each
why       the page of `holdfast why`
words     what happens next, and other facts in words
job       the screen of one job
jobs      the screen of all jobs
cluster_jobs  the jobs of all users of a cluster
show      draws a screen again and again, on a terminal or into a pipe
dashboard     serves the reports of all jobs to a browser
"""
