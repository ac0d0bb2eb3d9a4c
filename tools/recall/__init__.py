"""The recall laboratory's study: what is trained, in calls of a few minutes, and what is claimed of it."""
