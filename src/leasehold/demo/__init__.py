"""The demo: workers, a sandbox gateway and a trickle of intents in a live view."""
