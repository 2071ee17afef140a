"""The leader: one instance executes everything of a cluster lease."""
