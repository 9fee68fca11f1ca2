"""``elasticflow doctor``: what of this machine and its cluster will hurt a run, each with its cure.

A *matter* is a group of checks of its own (``matters``). Each runs in a process (``checking``), which is left
alone when its time is over (``examining``): a file system or a cluster may never answer. Pure functions make
findings of what was seen; nothing is changed, but for files that are made to see whether that can be done,
which are removed.
"""
