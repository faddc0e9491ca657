"""What the agent knows, as frozen values: no I/O, no clocks, no vendor's types.

``pci`` addresses · ``gpu`` a GPU and its facts · ``links`` how GPUs reach each other · ``inventory`` one snapshot of
the node · ``health`` verdicts and their causes. Values are validated when made.
"""
