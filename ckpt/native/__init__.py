"""Calls to C libraries.

memcpy  plain copies by several threads
pages   mapping of many pages before they are used
"""
