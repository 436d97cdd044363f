"""CPU engine of PDHG: compiled kernels over the path trie, and the passes that call them."""
