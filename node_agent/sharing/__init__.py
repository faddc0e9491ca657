"""One GPU for several: ``shares`` says which GPUs are shared and how."""
