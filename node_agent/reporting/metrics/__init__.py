"""What the agent tells Prometheus: ``dcgm`` has the GPUs' figures by DCGM-exporter's names, ``own`` what is the agent's
own; ``devices`` says of what there are series, ``families`` how they read, ``scrape`` puts an answer together.
"""
