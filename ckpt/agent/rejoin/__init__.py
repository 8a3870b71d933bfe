"""Agents that replace lost ones during an attempt. Saving continues, and nothing is restored.

leader    node rank 0: the newest save that is whole where its ranks run
node      verifies and adopts that save, and lets workers continue to save
"""
