"""Agents that replace lost ones in mid-attempt: saving goes on, nobody restores.

leader    node rank 0: the newest save that is whole where its ranks run
node      verification, redundancy, and the workers let in
"""
