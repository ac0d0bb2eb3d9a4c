"""Scale: the cells of one study over many processes, GPUs and machines; claims in the store lie underneath."""
