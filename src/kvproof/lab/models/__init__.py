"""Models the lab runs: weights from a GGUF file or at random, one small forward pass for all."""
