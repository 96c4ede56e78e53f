"""The benchmark: several ways to write the same text, prompt by prompt, in one process over one loaded model."""
