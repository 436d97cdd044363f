"""The machine: files, compiled kernels, threads, memory, Ctrl-C.  This file stays empty, so that
each use is cheap.
"""
