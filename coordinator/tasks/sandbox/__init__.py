"""Run untrusted programs without network and with bounded time, memory, files, processes and output.

Callers use runner.py. It starts child.py, which confines itself and then becomes the untrusted program; confine.py
wraps what the kernel offers for that: namespaces, Landlock, seccomp, resource limits. Those two import nothing of
Rollcast.
"""
