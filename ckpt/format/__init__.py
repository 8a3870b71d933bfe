"""The formats of stored data, and the checks when it is read.

layout         the bytes of each tensor in a shard, and the structure of the state around them
checksums      checksums over fixed-size blocks of a shard
shard_record   the record beside a shard: its writer, step, layout and checksums
lasting        metrics and pins: the steps that stay, and why
line           the line of descent of a save: which steps it continues
manifest       one committed step in a lower tier: every shard and the location of its bytes
manifest_rows  the rows of a manifest, with equal parts stored once
chunk_table    the chunks of a manifest, checked once for all ranks that have them in common
parsing        the guard that turns every failure of a parse into one error
json_values    Python values as JSON and back
json_kinds     types that JSON lacks: bytes, paths, dates, enums, dtypes
boxes          boxes inside tensors, and the chunks that cover a box
rank_grid      the ranks that hold parts of a tensor
atomic_files   private directories, and reads of regular files
file_lock      exclusive locks on files
memory_names   the names in a node's memory directory
"""
