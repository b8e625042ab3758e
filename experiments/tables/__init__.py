"""Tables: pure functions from rows to frames, and from frames to text."""
