"""What makes a process of the parts: composing, looping, listening, stopping."""
