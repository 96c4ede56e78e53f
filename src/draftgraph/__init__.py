"""DraftGraph: lossless speculative decoding over a token graph."""
