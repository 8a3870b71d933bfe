"""The places below the nodes' memories where steps are kept.

tier       the contract
posix      a shared directory
catalog    what steps a directory holds, and which can be restored
retention  which may go
quarantine bad ones, set aside with the reason
copying    one step to another directory
opened     the namespace that a path on a command line names
newest     the newest restorable step of each, for who supervises the run
"""
