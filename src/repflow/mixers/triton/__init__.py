"""The mixers' scans and blocks in Triton: what runs on the host. Usable only where Triton is installed."""
