"""The engine of PDHG in compiled code on CPUs: kernels over the path trie, and the passes that call
them.
"""
