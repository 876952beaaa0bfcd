"""Long prompts: how long engines read them, which ones wait for their first token, and why."""
