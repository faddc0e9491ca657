"""What happens in the agent, counted and timed where it happens; ``reporting/metrics`` shows it."""
