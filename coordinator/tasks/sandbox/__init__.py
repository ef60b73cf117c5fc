"""Run untrusted programs without network and with bounded time, memory, files, processes and output.

runner.py is what callers use; child.py is the program that locks itself in and then becomes the untrusted one, with
confine.py for the kernel's part: namespaces, Landlock, seccomp, resource limits. Those two import nothing of ours.
"""
