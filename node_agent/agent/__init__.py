"""The agent as a whole: ``build`` puts it together from settings, ``supervisor`` keeps its services running."""
