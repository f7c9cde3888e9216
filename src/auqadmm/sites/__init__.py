"""Sites: nothing runs there but what is installed there, nothing leaves but what its owner allows.

A site is a process of this library beside its data. It connects to a coordinator, which runs the loop, answers the
operations of a fixed list (engines/operations.py), and checks its own policy before anything leaves.
"""
