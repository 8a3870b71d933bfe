"""Other ways into the same shards.

exchange       export to a torch DCP directory or a safetensors file, import of a DCP directory
dcp_directory  a torch DCP directory, read so that nothing in it runs
sagemaker      HyperPod's names for the writer, the reader and their configuration
stored         a committed step as named tensors and values, without an agent
"""
