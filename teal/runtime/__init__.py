"""Runtime services: files, compiled kernels, threads, memory, interrupts.  Empty, so that imports
are cheap.
"""
