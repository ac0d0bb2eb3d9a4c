"""The pixel laboratory: its study in calls of a few minutes, and its claims."""
