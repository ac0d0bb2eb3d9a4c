"""The studies of depth, remedies and hybrids: phases that run in carried parts, and claims that were fixed before."""
