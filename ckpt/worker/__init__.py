"""The part of a checkpoint that runs in the training process.

engine      saves and loads, behind all public interfaces
session     one worker's loads and saves with the agents
link        the connection to the node's agent, and to those that replace it
slots       the slots that a rank stages into, and the outcome of the saves in them
save_in_flight  one save, from its slot to the agent
save/       copies live state to a slot
load/       fills live state from a saved step
standalone/ agents that the script starts itself, without a launcher
dcp         a storage writer and a storage reader for torch.distributed.checkpoint
dcp_objects the objects in its steps, as JSON or as a planner has serialised them
descent     the line of descent that the saves continue
boundaries  the steps that are saved, and the step boundary at which all ranks stop
loaded      the modules that a script has loaded by its second step boundary
tensors     the kinds of tensors and arrays, and the layout of their bytes in memory
placement   the boxes of a tensor that this rank holds (pieces, in a save), and the ranks that hold the others
lazy_torch  torch, imported on first use
"""
